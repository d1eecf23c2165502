#include "apps/web/session.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "apps/cli/runtime.h"
#include "apps/images/state_means.h"
#include "engine/check.h"
#include "engine/tape.h"
#include "ops/losses.h"
#include "ops/reductions.h"

namespace runnel {

PictureModel::PictureModel(const Checkpoint& checkpoint) : model(load_model<AutoregressiveTransformer>(checkpoint)) {
  const AutoregressiveConfig& c = model.config;
  const std::string file = checkpoint.path.string();
  classes = c.vocabulary - 256;
  try {
    checkpoint.config.at("side").get_to(side);
  } catch (const nlohmann::json::exception&) {
    side = 0;  // refused below
  }
  check(classes >= 0 && side > 0 && side < 1024 && size() == c.max_length + (classes > 0 ? 0 : 1) &&
            (c.outputs == 256 || c.outputs % 3 == 0) && checkpoint.data.contains("first_bytes"),
        file, " is not a model of gray, square pictures; `runnel mnist train` makes one");
  check(has_recurrent_state(model), file, " has ", c.encoder.attention.kind,
        " attention, which has no state S, Z; train one with --attention linear");
}

int32_t PictureModel::token(int64_t t, std::span<const uint8_t> picture, int64_t label) const {
  return t < class_tokens() ? static_cast<int32_t>(256 + label) : picture[static_cast<size_t>(t - class_tokens())];
}

Completion::Completion(const PictureModel& of, std::vector<uint8_t> picture, int64_t known, int64_t label, int64_t ways,
                       float temperature, uint64_t seed)
    : of_(of), known_(known), ways_(ways), temperature_(temperature), seed_(key_for(seed, Purpose::sampling).fold(0)) {
  const int64_t n = of.size();
  check(std::ssize(picture) == n, "a picture of ", picture.size(), " bytes, not ", n);
  check(known >= 1 - of.class_tokens() && known < n, "a completion goes on from 1 to ", n - 1, " bytes, not ", known);
  check(label >= -1 && label < std::max<int64_t>(of.classes, 1), "there is no class ", label);
  check(ways >= 1 && temperature > 0, "a completion needs at least one way and a temperature above 0");
  for (int64_t way = 0; way < ways; ++way) {
    pictures_.insert(pictures_.end(), picture.begin(), picture.begin() + known);
    pictures_.resize(static_cast<size_t>((way + 1) * n));
  }
  labels_ = {std::max<int64_t>(label, 0)};
  if (label < 0 && of.classes > 0) {
    labels_.resize(static_cast<size_t>(of.classes));
    std::iota(labels_.begin(), labels_.end(), 0);
  }
  nll_.resize(labels_.size());
  decoder_ = incremental_decoder(of.model, std::ssize(labels_));
}

Indices Completion::tokens(int64_t t) const {
  std::vector<int32_t> numbers;
  for (const int64_t label : labels_) numbers.push_back(of_.token(t, pictures_, label));
  return {Shape{std::ssize(numbers)}, numbers};
}

bool Completion::step() {
  const int64_t n = of_.size(), last_known = known_ + of_.class_tokens() - 1;
  if (at_ == n) return false;
  if (const int64_t read = decoder_->position().to_vector()[0]; read < last_known) {
    const Tensor outputs = decoder_->step(tokens(read));
    const Tensor nll = byte_nll(outputs, tokens(read + 1));
    for (size_t i = 0; i < nll_.size(); ++i) nll_[i] += nll.data()[i];
    at_ = read + 1 - of_.class_tokens();
    return true;
  }
  if (!keys_) begin_drawing();
  const Tensor outputs = decoder_->step(last_);
  last_ = byte_sample(outputs, keys_, temperature_, decoder_->position());
  for (int64_t way = 0; way < ways_; ++way)
    pictures_[static_cast<size_t>(way * n + at_)] = static_cast<uint8_t>(last_.data()[way]);
  return ++at_ < n;
}

std::vector<float> Completion::class_probabilities() const {
  const double least = *std::min_element(nll_.begin(), nll_.end());
  double sum = 0;
  for (const double nll : nll_) sum += std::exp(least - nll);
  std::vector<float> probabilities;
  for (const double nll : nll_) probabilities.push_back(static_cast<float>(std::exp(least - nll) / sum));
  return probabilities;
}

void Completion::begin_drawing() {
  const std::vector<float> probabilities = class_probabilities();
  const std::vector<int32_t> tokens_read = tokens(known_ + of_.class_tokens() - 1).to_vector();
  std::vector<int64_t> rows;
  std::vector<int32_t> next;
  std::vector<Key> keys;
  for (int64_t way = 0; way < ways_; ++way) {
    keys.push_back(seed_.fold(static_cast<uint64_t>(way)));
    float left = keys.back().fold(0).uniform(0);
    size_t row = 0;
    while (row + 1 < probabilities.size() && (left -= probabilities[row]) >= 0) ++row;
    rows.push_back(static_cast<int64_t>(row));
    way_labels_.push_back(labels_[row]);
    next.push_back(tokens_read[row]);
  }
  decoder_ = decoder_->select(rows);
  keys_ = Keys(Shape{ways_}, keys);
  last_ = Indices(Shape{ways_}, next);
  at_ = known_;
}

Reading::Reading(const PictureModel& of, std::vector<uint8_t> picture, int64_t label)
    : of_(of), picture_(std::move(picture)), label_(label) {
  check(std::ssize(picture_) == of.size(), "a picture of ", picture_.size(), " bytes, not ", of.size());
  check(label >= 0 && label < std::max<int64_t>(of.classes, 1), "there is no class ", label);
  kept_[0] = incremental_decoder(of.model, 1);
}

std::vector<float> Reading::bits() const {
  const int64_t n = of_.size(), predicted = of_.model.config.max_length;
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < predicted; ++t) tokens.push_back(of_.token(t, picture_, label_));
  const std::vector<int32_t> targets(picture_.end() - predicted, picture_.end());
  const Tensor nats = byte_nll(of_.model(Indices(Shape{1, predicted}, tokens)), Indices(Shape{1, predicted}, targets));
  std::vector<float> bits(static_cast<size_t>(n));
  for (int64_t t = 0; t < predicted; ++t)
    bits[static_cast<size_t>(n - predicted + t)] = nats.data()[t] / std::numbers::ln2_v<float>;
  return bits;
}

std::vector<float> Reading::state(int64_t read, int64_t layer) {
  const AutoregressiveConfig& c = of_.model.config;
  check(read >= 0 && read <= c.max_length && layer >= 0 && layer < c.encoder.layers, "there is no state after ", read,
        " tokens in layer ", layer);
  const auto before = std::prev(kept_.upper_bound(read));
  std::unique_ptr<Decoder> decoder = before->second->select({0});
  for (int64_t t = before->first; t < read; ++t) {
    decoder->read(Indices(Shape{1}, {of_.token(t, picture_, label_)}));
    if ((t + 1) % of_.side == 0) kept_.try_emplace(t + 1, decoder->select({0}));
  }
  return state_means(decoder->recurrent_state(layer));
}

TextModel::TextModel(const std::filesystem::path& path)
    : model(load_model<AutoregressiveTransformer>(read_checkpoint(path))) {
  const AutoregressiveConfig& c = model.config;
  check(c.vocabulary == 256 && c.outputs == 256 && is_unbounded(model), path.string(),
        " is not a model of bytes that keeps a state of constant size; `runnel text train --preset tiny` makes one");
}

Writer::Writer(const TextModel& of, const std::string& prompt, float temperature, uint64_t seed)
    : of_(of),
      temperature_(temperature),
      keys_(Shape{1}, {key_for(seed, Purpose::sampling)}),
      decoder_(incremental_decoder(of.model, 1)) {
  check(!prompt.empty() && temperature > 0, "a text goes on from at least one byte, at a temperature above 0");
  std::vector<int32_t> bytes;
  for (const char byte : prompt) bytes.push_back(static_cast<uint8_t>(byte));
  last_ = Indices(Shape{1}, {bytes.back()});
  bytes.pop_back();
  if (!bytes.empty()) decoder_->read_all(Indices(Shape{1, std::ssize(bytes)}, bytes));
}

uint8_t Writer::next() {
  const Tensor outputs = decoder_->step(last_);
  last_ = byte_sample(outputs, keys_, temperature_, decoder_->position());
  return static_cast<uint8_t>(last_.data()[0]);
}

int64_t Writer::cache_bytes() const {
  const EncoderConfig& e = of_.model.config.encoder;
  return read() * 2 * e.layers * e.heads * e.head_dim * static_cast<int64_t>(sizeof(float));
}

namespace {

const CopyTask copied{.length = 24};

AutoregressiveConfig copying() {
  return {.encoder = {.layers = 2, .heads = 4, .head_dim = 16, .feed_forward = 128, .dropout = 0},
          .vocabulary = copied.vocabulary(),
          .outputs = copied.vocabulary(),
          .max_length = copied.length};
}
constexpr double first_rate = 3e-3;

}  // namespace

CopyLearner::CopyLearner(uint64_t seed)
    : seed_{seed},
      model_(copying(), seed_.fold(0)),
      optimizer_(model_.parameters(), {.lr = first_rate, .rectify = true}) {}

float CopyLearner::update() {
  const CopyBatch batch = copied.batch(seed_.fold(1).fold(static_cast<uint64_t>(++step_)), 24);
  Tape tape;
  const Tensor loss = cross_entropy(model_(batch.tokens), batch.targets, batch.mask);
  optimizer_.step(tape.backward(loss));
  optimizer_.set_lr(first_rate * std::max(0.05, 1 - static_cast<double>(step_) / updates));
  return loss.item();
}

int64_t CopyLearner::length(const std::vector<int32_t>& example) const {
  return std::find(example.begin(), example.end(), 0) - example.begin();
}

std::vector<int32_t> CopyLearner::example() const {
  std::vector<int32_t> x = copied.batch(seed_.fold(2).fold(static_cast<uint64_t>(step_)), 1).tokens.to_vector();
  const auto n = static_cast<size_t>(length(x));
  const std::unique_ptr<Decoder> decoder = incremental_decoder(model_, 1);
  x.resize(2 * n + 1);
  for (size_t i = 0; i < 2 * n; ++i) {
    const int32_t next = argmax(decoder->step(Indices(Shape{1}, {x[i]}))).to_vector()[0];
    if (i >= n) x[i + 1] = next;
  }
  return x;
}

}  // namespace runnel
