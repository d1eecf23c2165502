// The training loop with a task of its own: an encoder without a causal mask labels each position of sequences of
// different lengths. It shows that the loop knows neither autoregressive models nor losses in nats alone.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include "apps/training/interrupt.h"
#include "apps/training/task.h"
#include "datasets/batch.h"
#include "models/checkpoint.h"
#include "models/encoder.h"
#include "tests/check.h"
#include "tests/program.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// Each position must name the token at the other end of its sequence.
class ReverseTask : public Task {
 public:
  explicit ReverseTask(const TrainSettings& settings)
      : settings_(settings),
        embedding_(random_embedding(tokens, 16, Key{1}, Device::cpu)),
        positions_(positional_encoding(longest, 16, {}, Device::cpu)),
        encoder_({.layers = 1, .heads = 2, .head_dim = 16, .feed_forward = 32, .dropout = 0}, false, Key{2}),
        predictor_(random_linear(tokens, 32, Key{3}, Device::cpu)) {}

  std::string name() const override { return "reverse"; }
  Parameters parameters() const override {
    Parameters all{{"embedding.weight", embedding_}};
    encoder_.append_parameters(all, "encoder");
    append(all, "predictor", predictor_);
    return all;
  }
  nlohmann::json model() const override { return {{"tokens", tokens}}; }
  // The first is the share of right labels: more is better.
  std::vector<Metric> metrics() const override {
    return {{"accuracy", Unit::percent, true}, {"validation", Unit::nats}};
  }

  Slice slice(int64_t first, int64_t count) const override {
    const Batch batch = draw(Key{10}, first, count);
    return {.weight = batch.positions, .tokens = static_cast<int64_t>(batch.positions), .loss = [this, batch](Key key) {
              return cross_entropy(logits(batch, key), batch.targets, batch.mask);
            }};
  }
  std::vector<double> validate() const override {
    if (interrupt_validation) std::raise(SIGINT);
    interrupt_validation = false;
    stop_if_interrupted();
    const Batch batch = draw(Key{11}, 0, 32);
    const Tensor outputs = logits(batch, {});
    const std::vector<float> x = outputs.to_vector(), mask = batch.mask.to_vector();
    double right = 0;
    for (size_t i = 0; i < mask.size(); ++i)
      if (mask[i] > 0)
        right += std::max_element(x.begin() + std::ptrdiff_t(i) * tokens, x.begin() + std::ptrdiff_t(i + 1) * tokens) -
                     x.begin() - std::ptrdiff_t(i) * tokens ==
                 batch.targets.data()[i];
    return {100 * right / batch.positions, cross_entropy(outputs, batch.targets, batch.mask).item()};
  }

  mutable bool interrupt_validation = false;

 private:
  static constexpr int64_t tokens = 4, longest = 6;
  struct Batch {
    PaddedBatch in;
    Indices targets;
    Tensor mask;
    double positions;
  };

  Batch draw(Key key, int64_t first, int64_t count) const {
    std::vector<std::vector<int32_t>> sequences, reversed;
    double positions = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Key own = key.fold(static_cast<uint64_t>(first + i));
      std::vector<int32_t> sequence(2 + own.below(0, longest - 1));
      for (size_t t = 0; t < sequence.size(); ++t) sequence[t] = static_cast<int32_t>(own.below(1 + t, tokens));
      sequences.push_back(sequence);
      reversed.emplace_back(sequence.rbegin(), sequence.rend());
      positions += static_cast<double>(sequence.size());
    }
    const PaddedBatch in = padded(sequences, 0, longest), out = padded(reversed, 0, longest);
    std::vector<float> mask;
    for (const std::vector<int32_t>& sequence : sequences)
      for (size_t t = 0; t < static_cast<size_t>(longest); ++t) mask.push_back(t < sequence.size() ? 1 : 0);
    return {in, out.tokens, Tensor(Shape{count, longest}, mask), positions};
  }
  Tensor logits(const Batch& batch, std::optional<Key> key) const {
    return predictor_(encoder_(embedding(batch.in.tokens, embedding_, positions_), {batch.in.lengths, key}));
  }

  const TrainSettings& settings_;
  Tensor embedding_, positions_;
  Encoder encoder_;
  Linear predictor_;
};

TrainSettings settings_for(const fs::path& folder) {
  TrainSettings s;
  s.out = folder.string();
  s.batch = 16;
  s.steps = 60;
  s.lr = 1e-2;
  s.evaluate_every = s.save_every = 20;
  s.threads = 1;
  return s;
}

}  // namespace

TEST_CASE("training: an encoder learns labels of padded sequences; the first metric chooses the best checkpoint") {
  const Sandbox box;
  TrainSettings s = settings_for(box.folder / "run");
  s.steps = 1000;
  s.evaluate_every = 200;
  s.schedule = "constant";
  CHECK(train(ReverseTask(s), s, config_json(s)) == 0);
  const std::vector<std::string> rows = split(read(box.folder / "run" / "metrics.csv"), '\n');
  CHECK(rows[0] == "step,loss,loss_bits,accuracy,validation,validation_bits,lr,tokens_per_second,seconds");
  double best = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string> cells = split(rows[i], ',');
    REQUIRE(cells.size() == 9);
    if (!cells[3].empty()) best = std::max(best, std::stod(cells[3]));
  }
  CHECK(best > 60);  // without both ends in view: 25, and the middle of odd lengths
  const Checkpoint checkpoint = read_checkpoint(box.folder / "run", "reverse");
  CHECK(checkpoint.state.at("best").get<double>() == doctest::Approx(best).epsilon(1e-6));
}

TEST_CASE("training: parts of a batch, weighted by their positions, make the same update") {
  const Sandbox box;
  for (const int64_t part : {0, 5}) {
    TrainSettings s = settings_for(box.folder / std::to_string(part));
    s.steps = 1;
    s.micro_batch = part;
    CHECK(train(ReverseTask(s), s, config_json(s)) == 0);
  }
  const auto numbers = [&](const char* run) {
    std::vector<double> all;
    for (const NamedTensor& t : load_safetensors(box.folder / run / "last.safetensors").tensors)
      for (const double x : doubles(t.tensor)) all.push_back(x);
    return all;
  };
  CHECK_LE(distance(numbers("5"), numbers("0")), rounding);
}

TEST_CASE("training: Ctrl-C during validation saves and leaves; the resumed run ends in the same bytes") {
  const Sandbox box;
  TrainSettings s = settings_for(box.folder / "whole");
  CHECK(train(ReverseTask(s), s, config_json(s)) == 0);
  s.out = (box.folder / "halves").string();
  {
    const ReverseTask task(s);
    task.interrupt_validation = true;
    CHECK(train(task, s, config_json(s)) == 130);
  }
  CHECK(read_checkpoint(box.folder / "halves" / "last.safetensors").step() == 20);
  s.resume = true;
  CHECK(train(ReverseTask(s), s, config_json(s)) == 0);
  const auto tensors = [&](const char* run, const char* file) {
    std::vector<std::vector<float>> all;
    for (const NamedTensor& t : load_safetensors(box.folder / run / file).tensors) all.push_back(t.tensor.to_vector());
    return all;
  };
  for (const char* file : {"last.safetensors", "best.safetensors"})
    CHECK(tensors("whole", file) == tensors("halves", file));
}
