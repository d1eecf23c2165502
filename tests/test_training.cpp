// The training loop with a task of its own: an encoder without a causal mask labels each position of sequences of
// different lengths. It shows that the loop knows neither autoregressive models nor losses in nats alone.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <latch>
#include <numeric>

#include "apps/cli/runtime.h"
#include "apps/training/interrupt.h"
#include "apps/training/metrics.h"
#include "apps/training/task.h"
#include "apps/training/workers.h"
#include "datasets/batch.h"
#include "engine/check.h"
#include "engine/threads.h"
#include "models/checkpoint.h"
#include "models/encoder.h"
#include "ops/layers.h"
#include "ops/losses.h"
#include "ops/reductions.h"
#include "tests/check.h"
#include "tests/program.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// Each position must name the token at the other end of its sequence.
class ReverseTask : public Task {
 public:
  ReverseTask()
      : embedding_(random_embedding(tokens, 16, Key{1}, Device::cpu)),
        positions_(positional_encoding(longest, 16, {}, Device::cpu)),
        encoder_({.layers = 1, .heads = 2, .head_dim = 16, .feed_forward = 32, .dropout = 0}, false, 64, Key{2}),
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
    return {{batch.in.tokens, batch.in.lengths, batch.targets},
            {batch.mask},
            batch.positions,
            static_cast<int64_t>(batch.positions)};
  }
  Tensor loss(const Slice& slice, std::optional<Key> key) const override {
    return cross_entropy(logits({slice.indices[0], slice.indices[1]}, key), slice.indices[2], slice.numbers[0]);
  }
  std::vector<double> validate(const WorkDone& report) const override {
    if (interrupt_validation) std::raise(SIGINT);
    interrupt_validation = false;
    report(0, 1);
    const Batch batch = draw(Key{11}, 0, 32);
    const Tensor outputs = logits(batch.in, {});
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
  Tensor logits(const PaddedBatch& in, std::optional<Key> key) const {
    return predictor_(encoder_(embedding(in.tokens, embedding_, positions_), {.lengths = in.lengths, .key = key}));
  }

  Tensor embedding_, positions_;
  Encoder encoder_;
  Linear predictor_;
};

// One parameter; keeps what the loop asks for.
class RecordingTask : public Task {
 public:
  RecordingTask(std::vector<double> validation, bool higher_is_better)
      : higher_is_better_(higher_is_better), validation_(std::move(validation)) {}

  std::string name() const override { return "recording"; }
  Parameters parameters() const override { return {{"x", x_}}; }
  nlohmann::json model() const override { return {}; }
  std::vector<Metric> metrics() const override { return {{"metric", Unit::percent, higher_is_better_}}; }
  Slice slice(int64_t first, int64_t count) const override {
    slices.emplace_back(first, count);
    return {{}, {}, static_cast<double>(count), count};
  }
  Tensor loss(const Slice&, std::optional<Key> key) const override {
    keys.emplace_back(key->value, *key->step);
    return sum(x_);
  }
  std::vector<double> validate(const WorkDone&) const override { return {validation_.at(validated_++)}; }

  mutable std::vector<std::pair<int64_t, int64_t>> slices;  // first, count
  mutable std::vector<std::pair<uint64_t, int32_t>> keys;   // with their steps

 private:
  Tensor x_ = Tensor::full(Shape{2}, 1).set_wants_grad();
  bool higher_is_better_;
  std::vector<double> validation_;
  mutable size_t validated_ = 0;
};

TrainSettings settings_for(const fs::path& folder) {
  TrainSettings s;
  s.out = folder.string();
  s.batch = s.micro_batch = 16;
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
  CHECK(train(ReverseTask(), s, config_json(s)) == 0);
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
    CHECK(train(ReverseTask(), s, config_json(s)) == 0);
  }
  const auto numbers = [&](const char* run) {
    std::vector<double> all;
    for (const NamedTensor& t : load_safetensors(box.folder / run / "last.safetensors").tensors)
      for (const double x : doubles(t.tensor)) all.push_back(x);
    return all;
  };
  CHECK_LE(distance(numbers("5"), numbers("0")), rounding);
}

TEST_CASE("training: a row of metrics.csv has the mean loss of the updates since the row before") {
  const Sandbox box;
  const auto losses = [&](int64_t log_every) {
    TrainSettings s = settings_for(box.folder / std::to_string(log_every));
    s.steps = 4;
    s.log_every = log_every;
    CHECK(train(ReverseTask(), s, config_json(s)) == 0);
    const std::vector<std::string> rows = split(read(fs::path(s.out) / "metrics.csv"), '\n');
    std::vector<double> all;
    for (size_t i = 1; i < rows.size(); ++i) all.push_back(std::stod(split(rows[i], ',').at(1)));
    return all;
  };
  const std::vector<double> each = losses(1), pairs = losses(2);
  REQUIRE(each.size() == 4);
  REQUIRE(pairs.size() == 2);
  for (size_t i = 0; i < 2; ++i) CHECK(std::abs(pairs[i] - (each[2 * i] + each[2 * i + 1]) / 2) <= 2e-6);
}

TEST_CASE("training: metrics.csv loses a row that was cut, and rows behind the step that a run goes on from") {
  const Sandbox box;
  const fs::path path = box.folder / "metrics.csv";
  const std::string header = "step,loss,loss_bits,validation,validation_bits,lr,tokens_per_second,seconds\n";
  const std::string row = "5,0.5,0.7,,,0.01,100,3.000\n";
  std::ofstream(path) << header << row << "9,0.5,0.7,,,0.01,100,5.000\n"
                      << "5,0.25";
  const MetricsFile file(path, {{"validation", Unit::nats}}, 5);
  CHECK(file.seconds() == 3);
  CHECK(read(path) == header + row);
}

TEST_CASE("training: a resumed run counts the seconds of the run before") {
  const Sandbox box;
  TrainSettings s = settings_for(box.folder / "run");
  const fs::path path = fs::path(s.out) / "metrics.csv";
  s.steps = 2;
  CHECK(train(ReverseTask(), s, config_json(s)) == 0);
  std::string rows = read(path);
  rows.replace(rows.rfind(',') + 1, std::string::npos, "1000.000\n");
  std::ofstream(path) << rows;
  s.steps = 4;
  s.resume = true;
  CHECK(train(ReverseTask(), s, config_json(s)) == 0);
  const std::string after = read(path);
  CHECK(after.starts_with(rows));
  CHECK(after.size() > rows.size());
  CHECK(std::stod(after.substr(after.rfind(',') + 1)) >= 1000);
}

TEST_CASE("training: a run of an older version goes on with the eps that it had, whatever its preset's is now") {
  TrainSettings s;
  s.adam_eps = 1e-9;
  s.adapt_to({{"lr", 1}});
  CHECK(s.adam_eps == 1e-8);
  s.adam_eps = 1e-9;
  s.adapt_to({{"adam-eps", 1e-9}});
  CHECK(s.adam_eps == 1e-9);
}

TEST_CASE("training: the best checkpoint is that of the best validation, not of the latest") {
  const Sandbox box;
  for (const bool higher_is_better : {false, true}) {
    TrainSettings s = settings_for(box.folder / (higher_is_better ? "higher" : "lower"));
    s.steps = 4;
    s.evaluate_every = 1;
    CHECK(train(RecordingTask({0.5, 0.1, 0.9, 0.3}, higher_is_better), s, config_json(s)) == 0);
    const Checkpoint best = read_checkpoint(fs::path(s.out) / "best.safetensors");
    CHECK(best.step() == (higher_is_better ? 3 : 2));
    CHECK(best.state.at("best").get<double>() == (higher_is_better ? 0.9 : 0.1));
    CHECK(read_checkpoint(s.out).step() == best.step());
    fs::remove(best.path);
    CHECK(read_checkpoint(s.out).step() == 4);
  }
}

TEST_CASE("training: each sequence is read once, in order; each update and each part of it has a key of its own") {
  const OmpThreads one(1);  // the task's lists are for one, and several would take the parts in any order
  const Sandbox box;
  for (const int64_t part : {0, 3}) {
    CAPTURE(part);
    TrainSettings s = settings_for(box.folder / std::to_string(part));
    s.seed = 5;
    s.steps = 2;
    s.batch = 7;
    s.micro_batch = part;
    const RecordingTask task({0}, false);
    CHECK(train(task, s, config_json(s)) == 0);
    const Key key = key_for(5, Purpose::dropout);
    std::vector<std::pair<uint64_t, int32_t>> keys;  // folded with the number of the part
    for (const int32_t step : {0, 1})
      for (const uint64_t number : part ? std::vector<uint64_t>{0, 1, 2} : std::vector<uint64_t>{0})
        keys.emplace_back(key.fold(number).value, step);
    CHECK(task.keys == keys);
    if (part == 0)
      CHECK(task.slices == std::vector<std::pair<int64_t, int64_t>>{{0, 7}, {7, 7}});
    else
      CHECK(task.slices == std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 3}, {6, 1}, {7, 3}, {10, 3}, {13, 1}});
  }
}

TEST_CASE("training: Ctrl-C during validation saves and leaves; the resumed run ends in the same bytes") {
  const Sandbox box;
  TrainSettings s = settings_for(box.folder / "whole");
  CHECK(train(ReverseTask(), s, config_json(s)) == 0);
  s.out = (box.folder / "halves").string();
  {
    const ReverseTask task;
    task.interrupt_validation = true;
    CHECK(train(task, s, config_json(s)) == 130);
  }
  CHECK(read_checkpoint(box.folder / "halves" / "last.safetensors").step() == 20);
  s.resume = true;
  CHECK(train(ReverseTask(), s, config_json(s)) == 0);
  const auto tensors = [&](const char* run, const char* file) {
    std::vector<std::vector<float>> all;
    for (const NamedTensor& t : load_safetensors(box.folder / run / file).tensors) all.push_back(t.tensor.to_vector());
    return all;
  };
  for (const char* file : {"last.safetensors", "best.safetensors"})
    CHECK(tensors("whole", file) == tensors("halves", file));
}

TEST_CASE("presets: flags of the base come before its own; others follow from a setting") {
  int64_t width = 1;
  bool mask = false;
  std::string kind = "linear";
  const Settings list{{"width", &width, in_range(1, 100), ""}, {"mask", &mask, {}, ""}, {"kind", &kind, {}, ""}};
  const Presets presets{{.name = "paper",
                         .flags = "--width 2",
                         .depends_on = "kind",
                         .cases = {{"lsh", "--width 3 --mask"}, {"", "--width 4"}}},
                        {"small", "--mask", "paper"}};
  set_preset(list, presets, "paper");
  CHECK((width == 4 && !mask));
  kind = "lsh";
  set_preset_cases(list, presets, "paper");
  CHECK((width == 3 && mask));
  mask = false;
  set_preset(list, presets, "small");
  CHECK((width == 2 && mask));
  CHECK(preset_text(presets).find("\n          with --kind lsh: --width 3 --mask\n") != std::string::npos);
  check_fails(
      [&] {
        set_preset(list, {{"wrong", "--height 3"}}, "wrong");
      },
      "a preset sets --height, which is no setting of this command");
  check_fails(
      [&] {
        set_preset(list, {{"wrong", "--width 1000"}}, "wrong");
      },
      "a preset sets --width: 1000 is not a number from 1 to 100");
}

TEST_CASE("workers: each piece of work is done once, in teams of their own; an error ends the run, not the workers") {
  Workers workers(3, 7);  // a number of threads that few machines have by default
  CHECK(workers.count() == 3);
  const OmpThreads all(5);
  for (const int64_t n : {0, 1, 3, 100}) {
    std::vector<std::atomic<int>> done(static_cast<size_t>(n));
    workers.run(n, [&](int64_t i) { ++done[static_cast<size_t>(i)]; });
    for (const std::atomic<int>& times : done) CHECK(times == 1);
    CHECK(omp_get_max_threads() == 5);
  }
  std::latch all_at_work(3);  // so each takes one
  std::atomic<int> teams = 0;
  workers.run(3, [&](int64_t) {
    all_at_work.arrive_and_wait();
    teams += omp_get_max_threads();
  });
  CHECK(teams == 3 * 7);
  std::atomic<int> begun = 0;
  const auto failing = [&](int64_t) {
    ++begun;
    fail("no such number");
  };
  check_fails([&] { workers.run(100, failing); }, "no such number");
  CHECK(begun <= 3);  // one by each, at most
  workers.run(1, [&](int64_t) { begun = 0; });
  CHECK(begun == 0);
}
