#include "models/decoder.h"

#include "engine/check.h"
#include "models/incremental_encoder.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/linear_attention.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

class IncrementalDecoder : public Decoder {
 public:
  IncrementalDecoder(const AutoregressiveTransformer& model, int64_t batch, Precision state_precision)
      : Decoder(model),
        encoder_(model.encoder, {batch, model.config.max_length, model.device(), state_precision}),
        predictor_(model.predictor.weight, model.predictor.bias),
        batch_(batch),
        is_unbounded_(is_unbounded(model)),
        position_(Shape{1}, {0}, model.device()) {}

  Tensor step(const Indices& tokens) override {
    const AutoregressiveConfig& c = model_.config;
    check(tokens.shape() == Shape{batch_}, "decoder: tokens ", tokens.shape(), " are not [", batch_, "]");
    check_room(1);
    const Tensor x = encoder_.step(model_.embed(tokens.viewed_as(Shape{batch_, 1}), {}, position_), position_);
    advance(position_);
    ++steps_;
    return reshape(linear(x, predictor_), Shape{batch_, c.outputs});
  }
  void read_all(const Indices& tokens) override {
    const int64_t length = tokens.shape()[-1];
    if (!encoder_.can_read() || (steps_ && model_.config.positions == "learned")) return Decoder::read_all(tokens);
    check_room(length);
    if (length) encoder_.read(model_.embed(tokens, {}, steps_ ? position_ : Indices()));
    steps_ += length;
    assign(position_, Indices(Shape{1}, {static_cast<int32_t>(steps_)}));
  }

  const Indices& position() const override { return position_; }
  int64_t sequence_bytes() const override { return encoder_.bytes() / batch_; }
  std::unique_ptr<Decoder> select(const std::vector<int64_t>& rows) const override {
    check_rows(rows, batch_);
    return std::unique_ptr<Decoder>(new IncrementalDecoder(*this, rows));
  }
  AttentionState recurrent_state(int64_t layer) const override {
    check(layer >= 0 && layer < encoder_.layers(), "decoder: no layer ", layer, " among ", encoder_.layers());
    const std::optional<AttentionState> state = encoder_.state(layer).recurrent_state();
    return state ? *state : Decoder::recurrent_state(layer);
  }
  bool is_replayable() const override { return true; }

 private:
  void check_room(int64_t more) const {
    check(is_unbounded_ || steps_ + more <= model_.config.max_length, "decoder: all ", model_.config.max_length,
          " positions of the model have been read");
  }

  IncrementalDecoder(const IncrementalDecoder& other, const std::vector<int64_t>& rows)
      : Decoder(other.model_),
        encoder_(
            other.encoder_.select(Indices(Shape{std::ssize(rows)}, {rows.begin(), rows.end()}, other.model_.device()))),
        predictor_(other.predictor_),
        batch_(std::ssize(rows)),
        is_unbounded_(other.is_unbounded_),
        position_(Shape{1}, other.position_.to_vector(), model_.device()),
        steps_(position_.to_vector()[0]) {}

  IncrementalEncoder encoder_;
  PackedLinear predictor_;
  int64_t batch_;
  bool is_unbounded_;
  Indices position_;
  int64_t steps_ = 0;  // the position as the host knows it: a replayed graph advances only the device's
};

}  // namespace

void Decoder::check_rows(const std::vector<int64_t>& rows, int64_t batch) {
  for (const int64_t row : rows) check(row >= 0 && row < batch, "decoder: no sequence ", row, " among ", batch);
}

void Decoder::read_all(const Indices& tokens) {
  const std::vector<int32_t> all = tokens.to_vector();
  const auto length = static_cast<size_t>(tokens.shape()[-1]);
  for (size_t t = 0; t < length; ++t) {
    std::vector<int32_t> column;
    for (size_t i = t; i < all.size(); i += length) column.push_back(all[i]);
    read(Indices(Shape{std::ssize(column)}, column, tokens.device()));
  }
}

AttentionState Decoder::recurrent_state(int64_t) const {
  fail("decoder: this attention keeps no state of constant size");
}

bool has_incremental_form(const AutoregressiveTransformer& model) {
  return model.encoder.layers[0].attention->decode({1, 1, model.device()}) != nullptr;
}

bool has_recurrent_state(const AutoregressiveTransformer& model) {
  const std::unique_ptr<DecodeState> state = model.encoder.layers[0].attention->decode({1, 1, model.device()});
  return state && state->recurrent_state();
}

bool is_unbounded(const AutoregressiveTransformer& model) {
  return model.config.positions == "none" && !model.encoder.empty_memory(1).empty();
}

std::unique_ptr<Decoder> incremental_decoder(const AutoregressiveTransformer& model, int64_t batch,
                                             Precision state_precision) {
  return std::make_unique<IncrementalDecoder>(model, batch, state_precision);
}

}  // namespace runnel
