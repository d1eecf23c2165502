// A stack of transformer layers with any kind of attention, causal or not: post-norm as in the authors' library, or
// pre-norm.
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
  int64_t head_dim = 32;        // E = M
  int64_t input_width = 0;      // D; 0: heads * head_dim
  int64_t feed_forward = 1024;  // F
  std::string norm = "post";    // or pre
  bool gelu = false;            // in the feed-forward layers, instead of relu
  double dropout = 0.1;
  AttentionConfig attention = {};
  // Activation checkpointing: keep only each layer's input for the backward pass, which then computes the layer again.
  // Changes no number, and is not part of a checkpoint.
  bool recompute = false;

  int64_t width() const { return input_width ? input_width : heads * head_dim; }
};
// The numbers in the matrices of an encoder with any kind of attention: a lower bound, for models too large to build.
double parameter_lower_bound(const EncoderConfig& config);

// post-norm:  x1 = norm1(x + dropout(attend(x)))
//             y  = norm2(x1 + dropout(feed_forward(x1)))
// pre-norm:   x1 = x + dropout(attend(norm1(x)))
//             y  = x1 + dropout(feed_forward(norm2(x1)))
// with attend(x) = out(attention(query(x), key(x), value(x))), feed_forward(x) =
// linear2(dropout(activation(linear1(x)))).
struct EncoderLayer {
  Linear query, key, value, out;  // [H E,D] [H E,D] [H E,D] [D,H E]; no key if the attention shares it with the query
  std::shared_ptr<const AttentionLayer> attention;
  LayerNorm norm1;
  Linear linear1, linear2;  // [F,D] [D,F]
  LayerNorm norm2;
  int64_t heads = 1;
  bool pre_norm = false;
  Activation activation = Activation::relu;  // of the feed-forward layers

  Tensor operator()(const Tensor& x, float dropout, const AttentionContext& context) const;  // [B,L,D] -> [B,L,D]

 private:
  Tensor attend(const Tensor& x, const AttentionContext& context, Dropout dropout) const;
  Tensor feed_forward(const Tensor& x, Dropout inner, Dropout outer) const;
};

using EncoderMemory = std::vector<std::vector<Tensor>>;  // of each layer: AttentionLayer::empty_memory

struct Encoder {
  EncoderConfig config;
  std::vector<EncoderLayer> layers;
  LayerNorm norm;

  // Throws Error if the configuration is impossible.
  Encoder(const EncoderConfig& c, bool causal, int64_t max_length, Key init, Device device = Device::cpu);

  // With context.key, dropout and the attention's randomness are drawn from it (training); without, there is no
  // dropout. With a memory, goes on from it, and leaves in it what the next positions need: constants, since gradients
  // end at its beginning. Throws Error if the attention has none, or with config.recompute.
  Tensor operator()(Tensor x, const AttentionContext& context = {},
                    EncoderMemory* memory = nullptr) const;  // [B,L,D] -> [B,L,D]
  // Before the first position; {} if the attention has no memory of constant size.
  EncoderMemory empty_memory(int64_t batch) const;
  void append_parameters(Parameters& all, const std::string& prefix) const;
};

}  // namespace runnel
