// The paper's autoregressive transformer (section 4.2): tokens -> learned embedding beside a fixed positional encoding
// -> encoder with causal attention -> a linear predictor. This form reads whole sequences (training, evaluation);
// models/decoder.h has the same function one position at a time (sampling).
#pragma once
#include <optional>

#include "models/encoder.h"
#include "models/positional_encoding.h"

namespace runnel {

struct AutoregressiveConfig {
  EncoderConfig encoder = {};
  int64_t vocabulary = 11;       // V: tokens are 0 .. V-1
  int64_t outputs = 11;          // numbers per position that the predictor returns
  int64_t max_length = 128;      // longest sequence
  double embedding_dropout = 0;  // of embedding and positional encoding; the authors' have none
  Grid grid = {};                // of positions, for images; the paper's has none
};
// The numbers in the matrices that a model with any kind of attention has: a lower bound, for models too large to
// build.
double parameter_lower_bound(const AutoregressiveConfig& config);
double buffer_size(const AutoregressiveConfig& config);  // that the model computes and a checkpoint does not hold
struct AutoregressiveTransformer {
  using Config = AutoregressiveConfig;

  AutoregressiveConfig config;
  Tensor embedding;  // [V,D/2]
  Tensor positions;  // [max_length,D/2], fixed
  Encoder encoder;
  Linear predictor;

  // Draws the parameters from `init`, the same on every device. Throws Error if the configuration is impossible.
  AutoregressiveTransformer(const AutoregressiveConfig& c, Key init, Device device = Device::cpu);

  // [B,L] -> [B,L,outputs]. With a key, dropout and the attention's randomness are drawn from it (training).
  Tensor operator()(const Indices& tokens, std::optional<Key> key = {}) const;

  Device device() const { return embedding.device(); }
  Parameters parameters() const;
};

}  // namespace runnel
