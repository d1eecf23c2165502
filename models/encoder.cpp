#include "models/encoder.h"

#include "engine/check.h"
#include "engine/recompute.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/shapes.h"

namespace runnel {

double parameter_lower_bound(const EncoderConfig& c) {
  const auto width = static_cast<double>(c.width());
  const double projections = static_cast<double>(c.heads) * static_cast<double>(c.head_dim);
  return static_cast<double>(c.layers) * width * (3 * projections + 2 * static_cast<double>(c.feed_forward));
}

Tensor EncoderLayer::attend(const Tensor& x, const AttentionContext& context, Dropout dropout) const {
  const int64_t batch = x.shape()[0], length = x.shape()[1];
  const auto split = [&](const Tensor& t) { return reshape(t, Shape{batch, length, heads, t.shape()[2] / heads}); };
  AttentionContext own = context;
  own.input = x;
  const bool has_key = bool(key.weight);
  const std::vector<Tensor> qkv =
      has_key ? linear(x, {query.weight, key.weight, value.weight}, {query.bias, key.bias, value.bias})
              : linear(x, {query.weight, value.weight}, {query.bias, value.bias});
  const Tensor a = (*attention)(split(qkv[0]), has_key ? split(qkv[1]) : Tensor(), split(qkv.back()), own);
  return out(reshape(a, qkv[0].shape()), Activation::none, dropout);
}

Tensor EncoderLayer::feed_forward(const Tensor& x, Dropout inner, Dropout outer) const {
  return linear2(linear1(x, activation, inner), Activation::none, outer);
}

Tensor EncoderLayer::operator()(const Tensor& x, float probability, const AttentionContext& context) const {
  const Key random = context.key.value_or(Key{});
  const auto dropout = [&](uint64_t number) { return Dropout{probability, random.fold(number)}; };
  AttentionContext own = context;
  if (own.key) own.key = random.fold(3);
  if (pre_norm) {
    const Tensor x1 = add(x, attend(norm1(x), own, dropout(0)));
    return add(x1, feed_forward(norm2(x1), dropout(1), dropout(2)));
  }
  const Tensor x1 = norm1(x, attend(x, own, {}), dropout(0));
  return norm2(x1, feed_forward(x1, dropout(1), {}), dropout(2));
}

Encoder::Encoder(const EncoderConfig& c, bool causal, int64_t max_length, Key init, Device device) : config(c) {
  check(c.layers > 0 && c.heads > 0 && c.head_dim > 0 && c.feed_forward > 0 && c.input_width >= 0,
        "encoder: layers, heads, head_dim and feed_forward must be positive");
  check(c.norm == "post" || c.norm == "pre", "encoder: norm is neither post nor pre but ", c.norm);
  check(c.dropout >= 0 && c.dropout < 1, "encoder: dropout ", c.dropout, " is not in [0, 1)");
  const int64_t d = c.width(), projected = c.heads * c.head_dim, f = c.feed_forward;
  const AttentionShape shape{c.heads, c.head_dim, causal, d, max_length};
  for (int64_t n = 0; n < c.layers; ++n) {
    // init.fold(0) and init.fold(1) are left to the model around the encoder: embedding, predictor.
    const Key key = init.fold(static_cast<uint64_t>(2 + n));
    const auto linear = [&](uint64_t number, int64_t out, int64_t in) {
      return random_linear(out, in, key.fold(number), device);
    };
    const AttentionSeeds keys{.fixed = Key{}.fold(static_cast<uint64_t>(1 + n)).fold(3), .init = key.fold(6)};
    const auto attention = make_attention(c.attention, shape, keys, device);
    const bool has_key = !attention->shares_query_key();
    layers.push_back({.query = linear(0, projected, d),
                      .key = has_key ? linear(1, projected, d) : Linear(),
                      .value = linear(2, projected, d),
                      .out = linear(3, d, projected),
                      .attention = attention,
                      .norm1 = unit_layer_norm(d, device),
                      .linear1 = linear(4, f, d),
                      .linear2 = linear(5, d, f),
                      .norm2 = unit_layer_norm(d, device),
                      .heads = c.heads,
                      .pre_norm = c.norm == "pre",
                      .activation = c.gelu ? Activation::gelu : Activation::relu});
    EncoderLayer& layer = layers.back();
    has_key ? stack_parameters({&layer.query, &layer.key, &layer.value})
            : stack_parameters({&layer.query, &layer.value});
  }
  norm = unit_layer_norm(d, device);
}

Tensor Encoder::operator()(Tensor x, const AttentionContext& context, EncoderMemory* memory) const {
  check(x.shape().rank() == 3 && x.shape()[2] == config.width(), "encoder: x ", x.shape(), " is not [B,L,",
        config.width(), "]");
  check(!memory || (std::ssize(*memory) == config.layers && !config.recompute),
        "encoder: a memory needs attention that keeps one, and no recomputation");
  const float dropout = context.key ? static_cast<float>(config.dropout) : 0;
  for (size_t n = 0; n < layers.size(); ++n) {
    AttentionContext own = context;
    if (own.key) own.key = own.key->fold(1 + n);
    if (memory) own.memory = &(*memory)[n];
    // By value: the tape may keep it.
    const auto run = [layer = layers[n], x, dropout, own] { return layer(x, dropout, own); };
    x = config.recompute ? recompute(run) : run();
    if (memory)
      for (Tensor& kept : (*memory)[n]) kept = detach(kept);
  }
  return norm(x);
}

EncoderMemory Encoder::empty_memory(int64_t batch) const {
  EncoderMemory memory;
  for (const EncoderLayer& layer : layers) memory.push_back(layer.attention->empty_memory(batch, norm.weight.device()));
  return memory[0].empty() ? EncoderMemory() : memory;
}

void Encoder::append_parameters(Parameters& all, const std::string& prefix) const {
  for (size_t n = 0; n < layers.size(); ++n) {
    const EncoderLayer& layer = layers[n];
    const std::string name = prefix + ".layers." + std::to_string(n) + ".";
    append(all, name + "attention.query_projection", layer.query);
    if (layer.key.weight) append(all, name + "attention.key_projection", layer.key);
    append(all, name + "attention.value_projection", layer.value);
    append(all, name + "attention.out_projection", layer.out);
    for (const NamedTensor& own : layer.attention->parameters())
      all.push_back({name + "attention.inner_attention." + own.name, own.tensor});
    append(all, name + "linear1", layer.linear1);
    append(all, name + "linear2", layer.linear2);
    append(all, name + "norm1", layer.norm1);
    append(all, name + "norm2", layer.norm2);
  }
  append(all, prefix + ".norm", norm);
}

}  // namespace runnel
