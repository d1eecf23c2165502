// A stack of transformer layers with any kind of attention, causal or not, as in the authors' library: post-norm.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "models/attention.h"
#include "models/layers.h"

namespace runnel {

struct EncoderConfig {
  int64_t layers = 4;
  int64_t heads = 8;
  int64_t head_dim = 32;        // E = M; the model's width D is heads * head_dim
  int64_t feed_forward = 1024;  // F
  double dropout = 0.1;
  AttentionConfig attention = {};
  // Activation checkpointing: keep only each layer's input for the backward pass, which then computes the layer again.
  // Changes no number, and is not part of a checkpoint.
  bool recompute = false;

  int64_t width() const { return heads * head_dim; }
};
// The attention's own settings are not among them: see attention_settings.
Settings list(EncoderConfig& config);

// x1 = norm1(x + dropout(out(attention(query(x), key(x), value(x)))))
// y  = norm2(x1 + dropout(linear2(dropout(relu(linear1(x1))))))
struct EncoderLayer {
  Linear query, key, value, out;  // [D,D]; no key if the kind of attention shares it with the query
  std::shared_ptr<const AttentionLayer> attention;
  LayerNorm norm1;
  Linear linear1, linear2;  // [F,D] [D,F]
  LayerNorm norm2;
  int64_t heads = 1;

  Tensor operator()(const Tensor& x, float dropout, const AttentionContext& context) const;  // [B,L,D] -> [B,L,D]
};

struct Encoder {
  EncoderConfig config;
  std::vector<EncoderLayer> layers;
  LayerNorm norm;

  // Throws Error if the configuration is impossible.
  Encoder(const EncoderConfig& c, bool causal, Key init, Device device = Device::cpu);

  // With context.key, dropout and the attention's randomness are drawn from it (training); without, there is no
  // dropout.
  Tensor operator()(Tensor x, const AttentionContext& context = {}) const;  // [B,L,D] -> [B,L,D]
  void append_parameters(Parameters& all, const std::string& prefix) const;
};

}  // namespace runnel
