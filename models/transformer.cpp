#include "models/transformer.h"

#include "engine/check.h"
#include "engine/recompute.h"
#include "models/initial.h"

namespace runnel {
namespace {

void check_config(const TransformerConfig& c) {
  check(c.layers > 0 && c.heads > 0 && c.head_dim > 0 && c.feed_forward > 0 && c.vocabulary > 0 && c.outputs > 0 &&
            c.max_length > 0,
        "transformer: layers, heads, head_dim, feed_forward, vocabulary, outputs and max_length must be positive");
  check(c.width() % 2 == 0, "transformer: the width ", c.heads, " x ", c.head_dim,
        " must be even: half of it is the embedding, half the position code");
  check(c.row >= 0, "transformer: a row of ", c.row, " bytes");
  check((c.channels == 1 || c.channels == 3) && c.row % c.channels == 0, "transformer: ", c.channels,
        " channels in a row of ", c.row, " bytes");
  check(c.dropout >= 0 && c.dropout < 1, "transformer: dropout ", c.dropout, " is not in [0, 1)");
}

// A layer around any causal attention, which gets q, k, v as the projections write them: [rows,D].
//   x1 = norm1(x + dropout(out(attention(q, k, v))))
//   y  = norm2(x1 + dropout(linear2(dropout(relu(linear1(x1))))))
template <class Layer, class Attend>
Tensor run_layer(const Layer& layer, const Tensor& x, Attend attention, float p, Key key) {
  const std::vector<Tensor> qkv = layer.project(x);
  const Tensor a = attention(qkv[0], qkv[1], qkv[2]);
  const Tensor x1 = add_layer_norm(x, layer.out(a), layer.norm1.weight, layer.norm1.bias, {p, key.fold(0)});
  const Tensor f = layer.linear2(layer.linear1(x1, Activation::relu, {p, key.fold(1)}));
  return add_layer_norm(x1, f, layer.norm2.weight, layer.norm2.bias, {p, key.fold(2)});
}

}  // namespace

const char* name(Attention attention) {
  return attention == Attention::linear ? "linear" : attention == Attention::softmax ? "softmax" : "lsh";
}

Attention attention_named(const std::string& name) {
  for (const Attention attention : {Attention::linear, Attention::softmax, Attention::lsh})
    if (name == runnel::name(attention)) return attention;
  fail("attention: ", name, " is none of linear, softmax, lsh");
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Attention attention, const Lsh& lsh, Key rotations) {
  switch (attention) {
    case Attention::linear:
      return linear_attention(q, k, v);
    case Attention::softmax:
      return softmax_attention(q, k, v);
    default:
      return lsh_attention(q, v, {}, lsh, rotations);
  }
}

Transformer::Transformer(const TransformerConfig& config, Key init, Device device) : config_(config) {
  check_config(config);
  const int64_t d = config.width(), f = config.feed_forward;
  embedding_ = config.row ? level_embedding(config.vocabulary, d / 2, init.fold(0), device)
                          : random_embedding(config.vocabulary, d / 2, init.fold(0), device);
  position_code_ = position_code(config.max_length, d / 2, config.row, config.channels, device);
  for (int64_t n = 0; n < config.layers; ++n) {
    const auto linear = [&, key = init.fold(static_cast<uint64_t>(2 + n))](uint64_t number, int64_t out, int64_t in) {
      return random_linear(out, in, key.fold(number), device);
    };
    const bool has_keys = config.attention != Attention::lsh;
    layers_.push_back({linear(0, d, d), has_keys ? linear(1, d, d) : Linear(), linear(2, d, d), linear(3, d, d),
                       plain_layer_norm(d, device), linear(4, f, d), linear(5, d, f), plain_layer_norm(d, device)});
    const bool last = n + 1 == config.layers;  // is left free to look elsewhere
    if (config.row && config.attention == Attention::linear && !last) look_above(layers_.back(), n, config);
  }
  norm_ = plain_layer_norm(d, device);
  predictor_ = random_linear(config.outputs, d, init.fold(1), device);
}

Tensor Transformer::operator()(const Indices& tokens, std::optional<Key> dropout) const {
  check(tokens.shape().rank() == 2, "transformer: tokens ", tokens.shape(), " are not [B,L]");
  const int64_t batch = tokens.shape()[0], length = tokens.shape()[1];
  const int64_t heads = config_.heads, e = config_.head_dim, d = config_.width();
  const float p = dropout ? config_.dropout : 0;
  const Key key = dropout.value_or(Key{});

  Tensor x = embedding(tokens, embedding_, position_code_, {p, key.fold(0)});
  for (size_t n = 0; n < layers_.size(); ++n) {
    const Key own = key.fold(1 + n);
    const auto attention = [=, kind = config_.attention, lsh = config_.lsh](const Tensor& q, const Tensor& k,
                                                                            const Tensor& v) {
      const auto split = [&](const Tensor& t) { return t ? reshape(t, Shape{batch, length, heads, e}) : t; };
      return reshape(attend(split(q), split(k), split(v), kind, lsh, own.fold(3)), Shape{batch, length, d});
    };
    // By value: the tape may keep it.
    const auto run = [=, layer = layers_[n]] { return run_layer(layer, x, attention, p, own); };
    x = config_.recompute ? recompute(run) : run();
  }
  return predictor_(layer_norm(x, norm_.weight, norm_.bias));
}

std::vector<NamedTensor> Transformer::parameters() const {
  std::vector<NamedTensor> all;
  const auto add = [&all](const std::string& name, const auto& module) {
    all.push_back({name + ".weight", module.weight});
    all.push_back({name + ".bias", module.bias});
  };
  all.push_back({"value_embedding.weight", embedding_});
  for (size_t n = 0; n < layers_.size(); ++n) {
    const EncoderLayer& layer = layers_[n];
    const std::string prefix = "transformer.layers." + std::to_string(n) + ".";
    add(prefix + "attention.query_projection", layer.query);
    if (layer.key.weight) add(prefix + "attention.key_projection", layer.key);
    add(prefix + "attention.value_projection", layer.value);
    add(prefix + "attention.out_projection", layer.out);
    add(prefix + "linear1", layer.linear1);
    add(prefix + "linear2", layer.linear2);
    add(prefix + "norm1", layer.norm1);
    add(prefix + "norm2", layer.norm2);
  }
  add("transformer.norm", norm_);
  add("predictor", predictor_);
  return all;
}

int64_t Transformer::parameter_count() const {
  int64_t count = 0;
  for (const NamedTensor& parameter : parameters()) count += parameter.tensor.size();
  return count;
}

struct RecurrentTransformer::PackedLayer {
  std::vector<PackedLinear> projections;  // query, key, value
  PackedLinear out_layer, layer1, layer2;
  LayerNorm norm1, norm2;

  explicit PackedLayer(const EncoderLayer& l)
      : projections{{l.query.weight, l.query.bias}, {l.key.weight, l.key.bias}, {l.value.weight, l.value.bias}},
        out_layer(l.out.weight, l.out.bias),
        layer1(l.linear1.weight, l.linear1.bias),
        layer2(l.linear2.weight, l.linear2.bias),
        norm1(l.norm1),
        norm2(l.norm2) {}

  std::vector<Tensor> project(const Tensor& x) const { return linear(x, projections); }
  Tensor out(const Tensor& x) const { return linear(x, out_layer); }
  Tensor linear1(const Tensor& x, Activation activation, Dropout) const { return linear(x, layer1, activation); }
  Tensor linear2(const Tensor& x) const { return linear(x, layer2); }
};

RecurrentTransformer::RecurrentTransformer(const Transformer& model, int64_t batch)
    : model_(&model), batch_(batch), position_(Shape{1}, {0}, model.device()) {
  check(batch > 0, "recurrent transformer: the batch is ", batch);
  const TransformerConfig& c = model_->config_;
  check(c.attention != Attention::lsh, "recurrent transformer: lsh attention has no state");
  auto layers = std::make_shared<std::vector<PackedLayer>>();
  for (const EncoderLayer& layer : model.layers_) {
    layers->emplace_back(layer);
    if (c.attention == Attention::linear)
      states_.push_back(AttentionState{Tensor::full(Shape{batch, c.heads, c.head_dim, c.head_dim}, 0, model.device()),
                                       Tensor::full(Shape{batch, c.heads, c.head_dim}, 0, model.device())});
    else
      states_.push_back(KeyValueCache{Tensor(Shape{batch, c.heads, c.head_dim, c.max_length}, model.device()),
                                      Tensor(Shape{batch, c.heads, c.max_length, c.head_dim}, model.device())});
  }
  layers_ = layers;
}

Tensor RecurrentTransformer::step(const Indices& tokens) {
  const TransformerConfig& c = model_->config_;
  check(tokens.shape() == Shape{batch_}, "recurrent transformer: tokens ", tokens.shape(), " are not [", batch_, "]");
  Tensor x = embedding(tokens.viewed_as(Shape{batch_, 1}), model_->embedding_, model_->position_code_, {}, position_);
  for (size_t n = 0; n < states_.size(); ++n) {
    const auto attention = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      const Shape split{batch_, 1, c.heads, c.head_dim};
      const auto attend = [&](auto& state) {
        const Tensor qs = reshape(q, split), ks = reshape(k, split), vs = reshape(v, split);
        if constexpr (std::is_same_v<decltype(state), AttentionState&>)
          return linear_attention_step(qs, ks, vs, state);
        else
          return softmax_attention_step(qs, ks, vs, state, position_);
      };
      return reshape(std::visit(attend, states_[n]), Shape{batch_, 1, c.width()});
    };
    x = run_layer((*layers_)[n], x, attention, 0, {});
  }
  advance(position_);
  return reshape(model_->predictor_(layer_norm(x, model_->norm_.weight, model_->norm_.bias)), Shape{batch_, c.outputs});
}

int64_t RecurrentTransformer::sequence_bytes() const {
  int64_t bytes = 0;
  const auto count = [&](const auto& state) {
    const auto& [first, second] = state;
    bytes += (first.size() + second.size()) / batch_ * static_cast<int64_t>(sizeof(float));
  };
  for (const auto& state : states_) std::visit(count, state);
  return bytes;
}

const AttentionState& RecurrentTransformer::state(int64_t layer) const {
  check(layer >= 0 && layer < std::ssize(states_), "recurrent transformer: no layer ", layer, " among ",
        states_.size());
  const AttentionState* const state = std::get_if<AttentionState>(&states_[static_cast<size_t>(layer)]);
  check(state != nullptr, "recurrent transformer: softmax attention has no state but its keys and values");
  return *state;
}

RecurrentTransformer RecurrentTransformer::select(const std::vector<int64_t>& from) const {
  RecurrentTransformer chosen = *this;
  std::vector<int32_t> rows;
  for (const int64_t sequence : from) {
    check(sequence >= 0 && sequence < batch_, "recurrent transformer: no sequence ", sequence, " among ", batch_);
    rows.push_back(static_cast<int32_t>(sequence));
  }
  const Device device = model_->device();
  const Indices which(Shape{std::ssize(rows)}, rows, device);
  chosen.batch_ = which.size();
  chosen.position_ = Indices(Shape{1}, position_.to_vector(), device);
  const auto gather = [&which](auto& state) {
    const auto& [first, second] = state;
    state = {gather_rows(first, which), gather_rows(second, which)};
  };
  for (auto& state : chosen.states_) std::visit(gather, state);
  return chosen;
}

RereadingTransformer::RereadingTransformer(const Transformer& model, int64_t batch)
    : model_(&model),
      read_(static_cast<size_t>(std::max<int64_t>(batch, 0))),
      position_(Shape{1}, {0}, model.device()) {
  check(batch > 0, "rereading transformer: the batch is ", batch);
}

void RereadingTransformer::read(const Indices& tokens) {
  check(tokens.shape() == Shape{std::ssize(read_)}, "rereading transformer: tokens ", tokens.shape(), " are not [",
        read_.size(), "]");
  const std::vector<int32_t> next = tokens.to_vector();
  for (size_t b = 0; b < next.size(); ++b) read_[b].push_back(next[b]);
  position_ = Indices(Shape{1}, {static_cast<int32_t>(read_[0].size())}, model_->device());
}

Tensor RereadingTransformer::step(const Indices& tokens) {
  read(tokens);
  std::vector<int32_t> all, last;
  for (const std::vector<int32_t>& sequence : read_) {
    all.insert(all.end(), sequence.begin(), sequence.end());
    last.push_back(static_cast<int32_t>(all.size() - 1));
  }
  const int64_t batch = std::ssize(read_), length = std::ssize(read_[0]);
  const Tensor outputs = (*model_)(Indices(Shape{batch, length}, all, model_->device()));
  return gather_rows(outputs.viewed_as(Shape{batch * length, outputs.shape()[-1]}),
                     Indices(Shape{batch}, last, model_->device()));
}

int64_t RereadingTransformer::sequence_bytes() const {
  const TransformerConfig& c = model_->config();  // of what is alive at once: x, q, k, v, y, and the feed-forward layer
  return c.max_length * (6 * c.width() + c.feed_forward + c.outputs) * static_cast<int64_t>(sizeof(float));
}

RereadingTransformer RereadingTransformer::select(const std::vector<int64_t>& from) const {
  RereadingTransformer chosen = *this;
  chosen.read_.clear();
  for (const int64_t sequence : from) {
    check(sequence >= 0 && sequence < std::ssize(read_), "rereading transformer: no sequence ", sequence, " among ",
          read_.size());
    chosen.read_.push_back(read_[static_cast<size_t>(sequence)]);
  }
  return chosen;
}

}  // namespace runnel
