// The layers of models: plain structs that hold tensors and can be called. Initial values have the distributions of
// the authors' framework, and are the same on every device.
#pragma once
#include <string>
#include <vector>

#include "engine/random.h"
#include "engine/tensor.h"
#include "models/parameters.h"
#include "ops/types.h"

namespace runnel {

struct Linear {
  Tensor weight, bias;  // [out,in] [out]

  Tensor operator()(const Tensor& x, Activation activation = Activation::none,
                    Dropout dropout = {}) const;  // [...,in] -> [...,out]
};

struct LayerNorm {
  Tensor weight, bias;  // [D] [D]

  Tensor operator()(const Tensor& x) const;  // [...,D] -> [...,D]
  // The end of a post-norm block: layer_norm(x + dropout(branch)).
  Tensor operator()(const Tensor& x, const Tensor& branch, Dropout dropout) const;
};

// x, and behind its columns those of a table that all sequences share: [B,L,...,m] [at least L,...,n] -> [B,L,...,m+n]
Tensor concat_shared(const Tensor& x, const Tensor& shared);

// Moves layers of one shape to one place in memory, so that `linear` with all of them is one matrix product on CUDA.
void stack_parameters(const std::vector<Linear*>& layers);

Tensor random_uniform(const Shape& shape, float bound, Key key, Device device = Device::cpu);  // in [-bound, bound)
Linear random_linear(int64_t out, int64_t in, Key key,
                     Device device = Device::cpu);                      // uniform in +-1/sqrt(in), weight and bias
LayerNorm unit_layer_norm(int64_t width, Device device = Device::cpu);  // weight 1, bias 0
// Normal with this standard deviation: [V,width].
Tensor random_embedding(int64_t vocabulary, int64_t width, Key key, Device device, float deviation = 1);

// Appends <name>.weight and <name>.bias.
template <class Layer>
void append(Parameters& all, const std::string& name, const Layer& layer) {
  all.push_back({name + ".weight", layer.weight});
  all.push_back({name + ".bias", layer.bias});
}

}  // namespace runnel
