// The paper's autoregressive transformer (section 4.2): tokens -> learned embedding beside a fixed positional encoding
// -> encoder with causal attention -> a linear predictor. For language models, positions may also be learned or left
// out, and the predictor may share the embedding's weights. This form reads whole sequences (training, evaluation);
// models/decoder.h has the same function one position at a time (sampling).
#pragma once
#include <optional>

#include "models/encoder.h"
#include "models/positional_encoding.h"

namespace runnel {

struct AutoregressiveConfig {
  // Of tokens: sinusoidal, beside the embedding, as in the paper; or learned, added to it; or none. It stands first
  // since g++ 12 destroys the members before one whose initial value may throw.
  std::string positions = "sinusoidal";
  EncoderConfig encoder = {};
  int64_t vocabulary = 11;       // V: tokens are 0 .. V-1
  int64_t outputs = 11;          // numbers per position that the predictor returns
  int64_t max_length = 128;      // longest sequence
  double embedding_dropout = 0;  // of embedding and positional encoding; the authors' have none
  Grid grid = {};                // of positions, for images; the paper's has none
  bool tied = false;             // the predictor's matrix is the embedding's
};
// The numbers in the matrices that a model with any kind of attention has: a lower bound, for models too large to
// build.
double parameter_lower_bound(const AutoregressiveConfig& config);
double buffer_size(const AutoregressiveConfig& config);  // that the model computes and a checkpoint does not hold
struct AutoregressiveTransformer {
  using Config = AutoregressiveConfig;

  AutoregressiveConfig config;
  Tensor embedding;  // [V,D/2]; without sinusoidal positions [V,D]
  Tensor positions;  // [max_length,D/2], fixed; or learned [max_length,D]; or empty
  Encoder encoder;
  Linear predictor;

  // Draws the parameters from `init`, the same on every device. Throws Error if the configuration is impossible.
  AutoregressiveTransformer(const AutoregressiveConfig& c, Key init, Device device = Device::cpu);

  // [B,L] -> [B,L,outputs]. With a key, dropout and the attention's randomness are drawn from it (training).
  Tensor operator()(const Indices& tokens, std::optional<Key> key = {}) const;
  // The same before the predictor: [B,L] -> [B,L,D]. A memory is as the encoder's.
  Tensor features(const Indices& tokens, std::optional<Key> key = {}, EncoderMemory* memory = nullptr) const;
  // The encoder's input: [B,L] -> [B,L,D]. first [1]: the position of the first token; empty: 0.
  Tensor embed(const Indices& tokens, Dropout dropout = {}, const Indices& first = {}) const;

  Device device() const { return embedding.device(); }
  Parameters parameters() const;
};

}  // namespace runnel
