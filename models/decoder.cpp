#include "models/decoder.h"

#include "engine/check.h"
#include "models/incremental_encoder.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/linear_attention.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

void check_rows(const std::vector<int64_t>& rows, int64_t batch) {
  for (const int64_t row : rows) check(row >= 0 && row < batch, "decoder: no sequence ", row, " among ", batch);
}

class IncrementalDecoder : public Decoder {
 public:
  IncrementalDecoder(const AutoregressiveTransformer& model, int64_t batch, Precision state_precision)
      : Decoder(model),
        encoder_(model.encoder, {batch, model.config.max_length, model.device(), state_precision}),
        predictor_(model.predictor.weight, model.predictor.bias),
        batch_(batch),
        position_(Shape{1}, {0}, model.device()) {}

  Tensor step(const Indices& tokens) override {
    const AutoregressiveConfig& c = model_.config;
    check(tokens.shape() == Shape{batch_}, "decoder: tokens ", tokens.shape(), " are not [", batch_, "]");
    check(steps_ < c.max_length, "decoder: all ", c.max_length, " positions of the model have been read");
    const Tensor x = encoder_.step(
        embedding(tokens.viewed_as(Shape{batch_, 1}), model_.embedding, model_.positions, {}, position_), position_);
    advance(position_);
    ++steps_;
    return reshape(linear(x, predictor_), Shape{batch_, c.outputs});
  }

  const Indices& position() const override { return position_; }
  int64_t sequence_bytes() const override { return encoder_.bytes() / batch_; }
  std::unique_ptr<Decoder> select(const std::vector<int64_t>& rows) const override {
    check_rows(rows, batch_);
    return std::unique_ptr<Decoder>(new IncrementalDecoder(*this, rows));
  }
  const AttentionState& recurrent_state(int64_t layer) const override {
    check(layer >= 0 && layer < encoder_.layers(), "decoder: no layer ", layer, " among ", encoder_.layers());
    const AttentionState* const state = encoder_.state(layer).recurrent_state();
    return state ? *state : Decoder::recurrent_state(layer);
  }
  bool is_replayable() const override { return true; }

 private:
  IncrementalDecoder(const IncrementalDecoder& other, const std::vector<int64_t>& rows)
      : Decoder(other.model_),
        encoder_(
            other.encoder_.select(Indices(Shape{std::ssize(rows)}, {rows.begin(), rows.end()}, other.model_.device()))),
        predictor_(other.predictor_),
        batch_(std::ssize(rows)),
        position_(Shape{1}, other.position_.to_vector(), model_.device()),
        steps_(position_.to_vector()[0]) {}

  IncrementalEncoder encoder_;
  PackedLinear predictor_;
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
    return gather(reshape(outputs, Shape{batch * length, outputs.shape()[-1]}),
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
