// Matrix products and linear layers. ops/ops.h has the letters.
#pragma once
#include <span>
#include <vector>

#include "engine/random.h"
#include "engine/tensor.h"
#include "ops/numerics.h"
#include "ops/types.h"

namespace runnel {

// op(a) op(b) of matrices, where op transposes if told to. With leading axes, which are equal, or absent in one of
// them: of each of these matrices.
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a = false,
              bool transpose_b = false);  // [...,m,k] [...,k,n] -> [...,m,n]

// dropout(activation(x w^T + b)); an empty b means no bias.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b, Activation activation = Activation::none,
              Dropout dropout = {});  // [...,in] [out,in] [out] -> [...,out]

// The same with several w and b: the results of layers with one input. Where w and b are parts of one tensor each
// (Tensor::parts), they are one matrix product on CUDA.
std::vector<Tensor> linear(const Tensor& x, const std::vector<Tensor>& w, const std::vector<Tensor>& b,
                           Activation activation = Activation::none, Dropout dropout = {});

// The w [out,in] and b [out] of `linear` in the order in which few rows are multiplied fastest: for sampling, where the
// same weights are needed at every position. A copy, in the precision() of now; has no gradient.
class PackedLinear {
 public:
  PackedLinear(const Tensor& w, const Tensor& b);

 private:
  friend std::vector<Tensor> linear(const Tensor& x, std::span<const PackedLinear> layers, Activation activation);
  Tensor w_, b_;
  Tensor panels_;                         // on the CPU: w in that order
  Precision precision_ = Precision::f32;  // of the panels: f32, bf16 or int8
};
// Each layer's activation(x w^T + b), all at once: [...,in] -> [...,out] of each.
std::vector<Tensor> linear(const Tensor& x, std::span<const PackedLinear> layers,
                           Activation activation = Activation::none);
inline Tensor linear(const Tensor& x, const PackedLinear& layer, Activation activation = Activation::none) {
  return linear(x, {&layer, 1}, activation)[0];
}

}  // namespace runnel
