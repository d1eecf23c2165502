// The authors' autoregressive transformer: tokens -> learned embedding beside fixed sinusoids -> post-norm encoder
// layers with causal attention -> final layer norm -> a linear predictor. Three forms on the same parameters:
// Transformer sees whole sequences (training, evaluation), the others one position at a time (sampling):
// RecurrentTransformer with a state (eq. 16-20), RereadingTransformer without.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/random.h"
#include "engine/tensor.h"
#include "ops/ops.h"

namespace runnel {

// A tensor and its name in a checkpoint; the names are those of the authors' library.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

enum class Attention { linear, softmax, lsh };
const char* name(Attention attention);               // "linear", "softmax", "lsh"
Attention attention_named(const std::string& name);  // throws if there is none of this name
// Causal attention of this kind. lsh takes the queries as keys; its random rotations are drawn from the key.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Attention attention, const Lsh& lsh,
              Key rotations);  // [B,L,H,E] [B,L,H,E] [B,L,H,M] -> [B,L,H,M]

struct TransformerConfig {
  int64_t layers = 4;
  int64_t heads = 8;
  int64_t head_dim = 32;        // E = M; the model's width D is heads * head_dim
  int64_t feed_forward = 1024;  // F
  int64_t vocabulary = 11;      // V: tokens are 0 .. V-1
  int64_t outputs = 11;         // numbers per position that the predictor returns
  int64_t max_length = 128;     // longest sequence
  float dropout = 0.1f;
  Attention attention = Attention::linear;
  Lsh lsh = {};  // of Attention::lsh
  // Bytes in a row of an image, 0 if tokens are not the levels of an image or all is to be as in the paper. Positions
  // are then coded as row, column and channel, and the model starts with what models/initial.h knows of images.
  int64_t row = 0;
  int64_t channels = 1;  // of an image: 1, or 3 whose bytes follow each other, r g b r g b
  // Keep only each layer's input for the backward pass, which then computes the layer again. Changes no number.
  bool recompute = false;

  int64_t width() const { return heads * head_dim; }
};

struct Linear {
  Tensor weight, bias;  // [out,in] [out]
  Tensor operator()(const Tensor& x, Activation activation = Activation::none, Dropout dropout = {}) const {
    return linear(x, weight, bias, activation, dropout);
  }
};

struct LayerNorm {
  Tensor weight, bias;  // [D] [D]
};

struct EncoderLayer {
  Linear query, key, value, out;  // [D,D]; with lsh there is no key
  LayerNorm norm1;
  Linear linear1, linear2;  // [F,D] [D,F]
  LayerNorm norm2;

  std::vector<Tensor> project(const Tensor& x) const { return {query(x), key.weight ? key(x) : Tensor(), value(x)}; }
};

class Transformer {
 public:
  // Draws the parameters from `init`, the same on every device (models/initial.h).
  Transformer(const TransformerConfig& config, Key init, Device device = Device::cpu);

  // [B,L] -> [B,L,outputs]. With a key, dropout and lsh's rotations are drawn from it (training); without, there is no
  // dropout, and the rotations are always the same.
  Tensor operator()(const Indices& tokens, std::optional<Key> dropout = {}) const;

  const TransformerConfig& config() const { return config_; }
  Device device() const { return embedding_.device(); }
  // The parameters, in a fixed order. The tensors share their storage with the model.
  std::vector<NamedTensor> parameters() const;
  int64_t parameter_count() const;

 private:
  friend class RecurrentTransformer;
  TransformerConfig config_;
  Tensor embedding_;      // [V,D/2]
  Tensor position_code_;  // [max_length,D/2], fixed
  std::vector<EncoderLayer> layers_;
  LayerNorm norm_;
  Linear predictor_;
};

// The same function, one position at a time, with a state per layer: S [B,H,E,M] and Z [B,H,E] of
// constant size, or, with softmax attention, room for the keys and values of max_length positions.
class RecurrentTransformer {
 public:
  // The model must outlive it; its linear layers are copied. Throws if its attention is lsh, which has no state.
  RecurrentTransformer(const Transformer& model, int64_t batch);

  // The next token of each sequence -> what the predictor says of the one after: [B] -> [B,outputs].
  Tensor step(const Indices& tokens);
  void read(const Indices& tokens) { step(tokens); }     // where nobody wants to know
  const Indices& position() const { return position_; }  // how many tokens it has read: [1], on the model's device
  int64_t sequence_bytes() const;                        // of memory that a sequence takes
  const AttentionState& state(int64_t layer) const;      // throws if its attention is not linear
  // A copy in which sequence i is sequence from[i] of this one; goes on from here on its own.
  RecurrentTransformer select(const std::vector<int64_t>& from) const;

 private:
  struct PackedLayer;
  const Transformer* model_;
  std::shared_ptr<const std::vector<PackedLayer>> layers_;
  std::vector<std::variant<AttentionState, KeyValueCache>> states_;
  int64_t batch_;
  Indices position_;
};

// The same function once more, with no state: every step reads all tokens again, so a sequence takes L^2 of what a
// position takes. It is how any attention can be sampled, and what the paper's comparison calls softmax and lsh.
class RereadingTransformer {
 public:
  RereadingTransformer(const Transformer& model, int64_t batch);  // the model must outlive it

  Tensor step(const Indices& tokens);  // as RecurrentTransformer's, and so are the others
  void read(const Indices& tokens);
  const Indices& position() const { return position_; }
  int64_t sequence_bytes() const;
  RereadingTransformer select(const std::vector<int64_t>& from) const;

 private:
  const Transformer* model_;
  std::vector<std::vector<int32_t>> read_;  // by each sequence, on the host
  Indices position_;
};

}  // namespace runnel
