#include "models/incremental_encoder.h"

#include "engine/check.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/shapes.h"

namespace runnel {

struct IncrementalEncoder::Packed {
  struct Layer {
    std::vector<PackedLinear> projections;  // query, key, value
    PackedLinear out, linear1, linear2;
    LayerNorm norm1, norm2;
    Activation activation;
    std::shared_ptr<const AttentionLayer> attention;

    explicit Layer(const EncoderLayer& l)
        : projections{{l.query.weight, l.query.bias}, {l.key.weight, l.key.bias}, {l.value.weight, l.value.bias}},
          out(l.out.weight, l.out.bias),
          linear1(l.linear1.weight, l.linear1.bias),
          linear2(l.linear2.weight, l.linear2.bias),
          norm1(l.norm1),
          norm2(l.norm2),
          activation(l.activation),
          attention(l.attention) {}

    Tensor feed_forward(const Tensor& x) const { return linear(linear(x, linear1, activation), linear2); }
  };
  EncoderConfig config;
  std::vector<Layer> layers;
  LayerNorm norm;
};

IncrementalEncoder::IncrementalEncoder(const Encoder& encoder, const DecodeOptions& decoding) {
  check(decoding.batch > 0, "decoder: the batch is ", decoding.batch);
  for (const EncoderLayer& layer : encoder.layers) {
    states_.push_back(layer.attention->decode(decoding));
    check(states_.back() != nullptr, "decoder: ", encoder.config.attention.kind, " attention has no incremental form");
  }
  packed_ =
      std::make_shared<Packed>(Packed{encoder.config, {encoder.layers.begin(), encoder.layers.end()}, encoder.norm});
}

Tensor IncrementalEncoder::step(const Tensor& x, const Indices& position) {
  return run(x, [&](size_t n, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& in) {
    return states_[n]->step(q, k, v, in, position);
  });
}

Tensor IncrementalEncoder::read(const Tensor& x) {
  return run(x, [&](size_t n, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& in) {
    return (*packed_->layers[n].attention)(q, k, v, {.input = in, .memory = states_[n]->memory()});
  });
}

Tensor IncrementalEncoder::run(Tensor x, const Attend& attend) const {
  const EncoderConfig& c = packed_->config;
  const bool pre_norm = c.norm == "pre";
  const int64_t batch = x.shape()[0], length = x.shape()[1];
  const Shape projected{batch, length, c.heads * c.head_dim}, split{batch, length, c.heads, c.head_dim};
  for (size_t n = 0; n < states_.size(); ++n) {
    const Packed::Layer& layer = packed_->layers[n];
    const Tensor in = pre_norm ? layer.norm1(x) : x;
    const std::vector<Tensor> qkv = linear(in, layer.projections);
    const Tensor a = attend(n, reshape(qkv[0], split), reshape(qkv[1], split), reshape(qkv[2], split), in);
    const Tensor attended = linear(reshape(a, projected), layer.out);
    if (pre_norm) {
      const Tensor x1 = add(x, attended);
      x = add(x1, layer.feed_forward(layer.norm2(x1)));
    } else {
      const Tensor x1 = layer.norm1(x, attended, {});
      x = layer.norm2(x1, layer.feed_forward(x1), {});
    }
  }
  return packed_->norm(x);
}

IncrementalEncoder IncrementalEncoder::select(const Indices& rows) const {
  IncrementalEncoder result;
  result.packed_ = packed_;
  for (const auto& state : states_) result.states_.push_back(state->select(rows));
  return result;
}

int64_t IncrementalEncoder::bytes() const {
  int64_t bytes = 0;
  for (const auto& state : states_) bytes += state->bytes();
  return bytes;
}

}  // namespace runnel
