#include "engine/check.h"
#include "models/decoder.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

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
  int64_t sequence_bytes() const override {  // alive at once: x, q, k, v, y, and the feed-forward layer
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

std::unique_ptr<Decoder> uncached_decoder(const AutoregressiveTransformer& model, int64_t batch) {
  check(batch > 0, "decoder: the batch is ", batch);
  return std::make_unique<UncachedDecoder>(model, std::vector<std::vector<int32_t>>(static_cast<size_t>(batch)));
}

std::unique_ptr<Decoder> make_decoder(const AutoregressiveTransformer& model, int64_t batch) {
  return has_incremental_form(model) ? incremental_decoder(model, batch) : uncached_decoder(model, batch);
}

}  // namespace runnel
