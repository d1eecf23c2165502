#include "models/decoder.h"

#include "engine/check.h"

namespace runnel {
namespace {

// An encoder layer without gradient and dropout, its linear layers packed for few rows.
struct PackedLayer {
  std::vector<PackedLinear> projections;  // query, key, value
  PackedLinear out, linear1, linear2;
  LayerNorm norm1, norm2;

  explicit PackedLayer(const EncoderLayer& l)
      : projections{{l.query.weight, l.query.bias}, {l.key.weight, l.key.bias}, {l.value.weight, l.value.bias}},
        out(l.out.weight, l.out.bias),
        linear1(l.linear1.weight, l.linear1.bias),
        linear2(l.linear2.weight, l.linear2.bias),
        norm1(l.norm1),
        norm2(l.norm2) {}
};

struct PackedModel {
  std::vector<PackedLayer> layers;
  PackedLinear predictor;

  explicit PackedModel(const AutoregressiveTransformer& model)
      : layers(model.encoder.layers.begin(), model.encoder.layers.end()),
        predictor(model.predictor.weight, model.predictor.bias) {}
};

void check_rows(const std::vector<int64_t>& rows, int64_t batch) {
  for (const int64_t row : rows) check(row >= 0 && row < batch, "decoder: no sequence ", row, " among ", batch);
}

class IncrementalDecoder : public Decoder {
 public:
  IncrementalDecoder(const AutoregressiveTransformer& model, int64_t batch, Precision state_precision)
      : Decoder(model), batch_(batch), position_(Shape{1}, {0}, model.device()) {
    check(batch > 0, "decoder: the batch is ", batch);
    for (const EncoderLayer& layer : model.encoder.layers) {
      states_.push_back(layer.attention->decode({batch, model.config.max_length, model.device(), state_precision}));
      check(states_.back() != nullptr, "decoder: ", model.config.encoder.attention.kind,
            " attention has no incremental form");
    }
    packed_ = std::make_shared<PackedModel>(model);
  }

  Tensor step(const Indices& tokens) override {
    const AutoregressiveConfig& c = model_.config;
    check(tokens.shape() == Shape{batch_}, "decoder: tokens ", tokens.shape(), " are not [", batch_, "]");
    check(steps_ < c.max_length, "decoder: all ", c.max_length, " positions of the model have been read");
    const Shape whole{batch_, 1, c.encoder.width()}, split{batch_, 1, c.encoder.heads, c.encoder.head_dim};
    Tensor x = embedding(tokens.viewed_as(Shape{batch_, 1}), model_.embedding, model_.positions, {}, position_);
    for (size_t n = 0; n < states_.size(); ++n) {
      const PackedLayer& layer = packed_->layers[n];
      const std::vector<Tensor> qkv = linear(x, layer.projections);
      const Tensor a =
          states_[n]->step(reshape(qkv[0], split), reshape(qkv[1], split), reshape(qkv[2], split), position_);
      const Tensor x1 = layer.norm1(x, linear(reshape(a, whole), layer.out), {});
      x = layer.norm2(x1, linear(linear(x1, layer.linear1, Activation::relu), layer.linear2), {});
    }
    advance(position_);
    ++steps_;
    return reshape(linear(model_.encoder.norm(x), packed_->predictor), Shape{batch_, c.outputs});
  }

  const Indices& position() const override { return position_; }
  int64_t sequence_bytes() const override {
    int64_t bytes = 0;
    for (const auto& state : states_) bytes += state->bytes() / batch_;
    return bytes;
  }
  std::unique_ptr<Decoder> select(const std::vector<int64_t>& rows) const override {
    check_rows(rows, batch_);
    return std::unique_ptr<Decoder>(new IncrementalDecoder(*this, rows));
  }
  const AttentionState& recurrent_state(int64_t layer) const override {
    check(layer >= 0 && layer < std::ssize(states_), "decoder: no layer ", layer, " among ", states_.size());
    const AttentionState* const state = states_[static_cast<size_t>(layer)]->recurrent_state();
    return state ? *state : Decoder::recurrent_state(layer);
  }
  bool is_replayable() const override { return true; }

 private:
  IncrementalDecoder(const IncrementalDecoder& other, const std::vector<int64_t>& rows)
      : Decoder(other.model_),
        packed_(other.packed_),
        batch_(std::ssize(rows)),
        position_(Shape{1}, other.position_.to_vector(), model_.device()),
        steps_(position_.to_vector()[0]) {
    const Indices which(Shape{batch_}, {rows.begin(), rows.end()}, model_.device());
    for (const auto& state : other.states_) states_.push_back(state->select(which));
  }

  std::shared_ptr<const PackedModel> packed_;
  std::vector<std::unique_ptr<DecodeState>> states_;
  int64_t batch_;
  Indices position_;
  int64_t steps_ = 0;  // the position as the host knows it: a replayed graph advances only the device's
};

class UncachedDecoder : public Decoder {
 public:
  UncachedDecoder(const AutoregressiveTransformer& model, std::vector<std::vector<int32_t>> prefixes)
      : Decoder(model), prefixes_(std::move(prefixes)) {
    check(!prefixes_.empty(), "decoder: the batch is empty");
    set_position();
  }

  void read(const Indices& tokens) override {
    check(tokens.shape() == Shape{std::ssize(prefixes_)}, "decoder: tokens ", tokens.shape(), " are not [",
          prefixes_.size(), "]");
    check(std::ssize(prefixes_[0]) < model_.config.max_length, "decoder: all ", model_.config.max_length,
          " positions of the model have been read");
    const std::vector<int32_t> next = tokens.to_vector();
    for (size_t b = 0; b < next.size(); ++b) prefixes_[b].push_back(next[b]);
    set_position();
  }
  Tensor step(const Indices& tokens) override {
    read(tokens);
    std::vector<int32_t> all, last;
    for (const std::vector<int32_t>& prefix : prefixes_) {
      all.insert(all.end(), prefix.begin(), prefix.end());
      last.push_back(static_cast<int32_t>(all.size() - 1));
    }
    const int64_t batch = std::ssize(prefixes_), length = std::ssize(prefixes_[0]);
    const Tensor outputs = model_(Indices(Shape{batch, length}, all, model_.device()));
    return gather_rows(outputs.viewed_as(Shape{batch * length, outputs.shape()[-1]}),
                       Indices(Shape{batch}, last, model_.device()));
  }
  const Indices& position() const override { return position_; }
  int64_t sequence_bytes() const override {  // of what is alive at once: x, q, k, v, y, and the feed-forward layer
    const AutoregressiveConfig& c = model_.config;
    return c.max_length * (6 * c.encoder.width() + c.encoder.feed_forward + c.outputs) *
           static_cast<int64_t>(sizeof(float));
  }
  std::unique_ptr<Decoder> select(const std::vector<int64_t>& rows) const override {
    check_rows(rows, std::ssize(prefixes_));
    std::vector<std::vector<int32_t>> chosen;
    for (const int64_t row : rows) chosen.push_back(prefixes_[static_cast<size_t>(row)]);
    return std::make_unique<UncachedDecoder>(model_, std::move(chosen));
  }
  bool is_replayable() const override { return false; }

 private:
  void set_position() { position_ = Indices(Shape{1}, {static_cast<int32_t>(prefixes_[0].size())}, model_.device()); }

  std::vector<std::vector<int32_t>> prefixes_;  // of each sequence, on the host
  Indices position_;
};

}  // namespace

const AttentionState& Decoder::recurrent_state(int64_t) const {
  fail("decoder: this attention keeps no state of constant size");
}

bool has_incremental_form(const AutoregressiveTransformer& model) {
  return model.encoder.layers[0].attention->decode({1, 1, model.device()}) != nullptr;
}

bool has_recurrent_state(const AutoregressiveTransformer& model) {
  const std::unique_ptr<DecodeState> state = model.encoder.layers[0].attention->decode({1, 1, model.device()});
  return state && state->recurrent_state();
}

std::unique_ptr<Decoder> incremental_decoder(const AutoregressiveTransformer& model, int64_t batch,
                                             Precision state_precision) {
  return std::make_unique<IncrementalDecoder>(model, batch, state_precision);
}

std::unique_ptr<Decoder> uncached_decoder(const AutoregressiveTransformer& model, int64_t batch) {
  check(batch > 0, "decoder: the batch is ", batch);
  return std::make_unique<UncachedDecoder>(model, std::vector<std::vector<int32_t>>(static_cast<size_t>(batch)));
}

}  // namespace runnel
