// runnel bench lra-speed: Long Range Arena's table of speed and memory over the length, on texts of bytes.
#include <fmt/format.h>

#include <algorithm>

#include "apps/bench/bench.h"
#include "apps/lra/published.h"
#include "apps/training/updater.h"
#include "datasets/lra/labelled.h"
#include "engine/check.h"
#include "engine/memory.h"
#include "models/attention_kinds.h"
#include "models/lra/classifier.h"
#include "ops/losses.h"

namespace runnel {
namespace {

struct SpeedOptions : BenchOptions {
  int64_t batch = 1;
  int64_t longest = 4096;
  ClassifierConfig model;

  SpeedOptions() {
    EncoderConfig& e = model.encoder;
    e.layers = e.heads = 4, e.head_dim = 64, e.feed_forward = 1024, e.norm = "pre", e.gelu = true;
  }

  Settings list() override {
    return extended(
        BenchOptions::list(),
        {{"batch", &batch, in_range(1, 1 << 20), "sequences of an update; Long Range Arena has 32"},
         {"longest", &longest, in_range(1024, 1 << 20), "lengths are the multiples of 1024 up to this one"},
         {"layers", &model.encoder.layers, in_range(1, 1024), "encoder layers"},
         {"heads", &model.encoder.heads, in_range(1, 1024), "attention heads"},
         {"head-dim", &model.encoder.head_dim, in_range(1, 256), "E = M"},
         {"feed-forward", &model.encoder.feed_forward, in_range(1, 1 << 20), "width of the feed-forward layers"}});
  }
};

struct Cost {
  double seconds, bytes;  // of an update
};

Cost measure(const SpeedOptions& o, const std::string& kind, int64_t length) {
  const Device device = o.chosen_device();
  const int64_t live = memory_use(device).live;
  reset_peak(device);
  ClassifierConfig config = o.model;
  config.encoder.attention.kind = kind;
  config.max_length = length;
  const SequenceClassifier model(config, Key{1}, device);
  const auto loss = [&](const TokenBatch& batch, Key key) {
    return cross_entropy(model({batch.tokens, batch.positions, batch.lengths}, key), batch.labels);
  };
  Updater updater({model.parameters(), authors_options}, device, Key{2}, loss_of<TokenBatch>(loss));
  std::vector<int32_t> tokens, positions, labels;
  for (int64_t b = 0; b < o.batch; ++b) {
    for (int64_t l = 0; l < length; ++l) {
      tokens.push_back(1 + static_cast<int32_t>(Key{3}.below(static_cast<uint64_t>(b * length + l), 256)));
      positions.push_back(static_cast<int32_t>(l));
    }
    labels.push_back(static_cast<int32_t>(b % 2));
  }
  const Shape shape{o.batch, length}, rows{o.batch};
  const std::vector<int32_t> lengths(static_cast<size_t>(o.batch), static_cast<int32_t>(length));
  const TokenBatch batch{Indices(shape, tokens), Indices(shape, positions), Indices(rows, lengths),
                         Indices(rows, labels)};
  const Slice slice = slice_of(batch, static_cast<double>(o.batch), shape.size());
  int64_t step = 0;
  const double seconds = median_seconds(o, [&] { updater.update(step++, {slice}); });
  return {seconds, static_cast<double>(memory_use(device).peak - live)};
}

int bench_lra_speed(SpeedOptions& o) {
  fmt::print(
      "{}\nupdates of a classifier of texts of bytes: {} layers, {} heads of {}, batch {}; speed and memory "
      "relative to softmax at the same length; beside them what Long Range Arena published\n",
      hardware(o, product_rate(o)), o.model.encoder.layers, o.model.encoder.heads, o.model.encoder.head_dim, o.batch);
  std::vector<int64_t> lengths;
  for (int64_t length = 1024; length <= o.longest; length += 1024) lengths.push_back(length);
  Choices kinds = attention_names(Forms::full);
  std::stable_partition(kinds.begin(), kinds.end(), [](const std::string& kind) { return kind == "softmax"; });
  Table table(o, "lra-speed", {"attention", "L", "updates/s", "speed", "LRA speed", "MB", "memory", "LRA memory"},
              std::ssize(kinds) * std::ssize(lengths));
  std::vector<Cost> softmax;
  for (const std::string& kind : kinds)
    for (size_t i = 0; i < lengths.size(); ++i) {
      const Cost cost = measure(o, kind, lengths[i]);
      if (kind == "softmax") softmax.push_back(cost);
      std::string speed = "-", memory = "-";
      const auto theirs = [&](const std::string& of, const char* what) {
        return published(of, fmt::format("{}_{}k", what, i + 1));
      };
      if (const auto rate = theirs(kind, "updates_per_second"), gigabytes = theirs(kind, "gigabytes"); rate) {
        speed = fmt::format("{:.1f}", *rate / *theirs("softmax", "updates_per_second"));
        memory = fmt::format("{:.2f}", *gigabytes / *theirs("softmax", "gigabytes"));
      }
      table.row({kind, std::to_string(lengths[i]), fmt::format("{:.3g}", 1 / cost.seconds),
                 fmt::format("{:.2f}", softmax[i].seconds / cost.seconds), speed,
                 fmt::format("{:.0f}", cost.bytes / 1e6), fmt::format("{:.2f}", cost.bytes / softmax[i].bytes),
                 memory});
    }
  table.finish();
  return 0;
}

}  // namespace

void add_lra_speed(Subcommand bench) {
  add_command<SpeedOptions>(bench, "lra-speed",
                            "Long Range Arena: speed and memory of training over the length, relative to softmax",
                            bench_lra_speed);
}

}  // namespace runnel
