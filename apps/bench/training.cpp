// runnel bench training: tokens/s with the paper's models.
#include <fmt/format.h>

#include "apps/bench/bench.h"
#include "apps/training/settings.h"
#include "apps/training/updater.h"
#include "datasets/copy_task.h"
#include "datasets/images.h"
#include "engine/timing.h"
#include "models/attention_kinds.h"
#include "models/config_settings.h"
#include "ops/elementwise.h"
#include "ops/losses.h"
#include "ops/reductions.h"

namespace runnel {
namespace {

struct TrainingOptions : Timing {
  AttentionConfig attention = {};

  Settings list() override {
    return extended(extended(Timing::list(), {{"attention", &attention.kind, one_of(attention_names(Forms::causal)),
                                               "attention mechanism"}}),
                    all_attention_settings(attention, attention_names(Forms::causal)));
  }
};

// Multiplications and additions of one token's matrix products in the forward pass; backward takes twice as many.
double product_flops(const AutoregressiveConfig& c) {
  const double d = static_cast<double>(c.encoder.width());
  return 2 *
         (static_cast<double>(c.encoder.layers) * (4 * d * d + 2 * d * static_cast<double>(c.encoder.feed_forward)) +
          d * static_cast<double>(c.outputs));
}

int bench_training(TrainingOptions& o) {
  const double peak = product_rate(o);
  const std::string machine = hardware(o, peak);
  fmt::print("{}\n{} attention, median of {} steps\n", machine, o.attention.kind, o.runs);
  nlohmann::json rows = nlohmann::json::array();
  // slice(key, n): n sequences.
  const auto measure = [&](const char* name, AutoregressiveConfig config, int64_t batch, const auto& slice,
                           const auto& loss) {
    config.encoder.attention = o.attention;
    const int64_t part = default_part(batch, o.chosen_device());
    AutoregressiveTransformer model(config, Key{1}, o.chosen_device());
    Updater updater({model.parameters(), authors_options}, o.chosen_device(), Key{2}, loss(model));
    int64_t step = 0;
    const auto update = [&] {
      std::vector<Slice> slices;
      for (int64_t first = 0; first < batch; first += part)
        slices.push_back(slice(Key{3}.fold(static_cast<uint64_t>(step * batch + first)), part));
      updater.update(step++, slices);
    };
    update();  // CUDA captures the second as a graph
    const double seconds = median_seconds(o, update), rate = static_cast<double>(batch * config.max_length) / seconds;
    std::string kernels;
    nlohmann::json& row = rows.emplace_back(nlohmann::json{{"model", name},
                                                           {"batch", batch},
                                                           {"length", config.max_length},
                                                           {"tokens_per_second", rate},
                                                           {"ms_per_step", 1e3 * seconds}});
    if (o.chosen_device() == Device::cuda) {
      const KernelTime time = kernel_time(o.chosen_device(), update);
      kernels = fmt::format(" ({:.1f} ms on the GPU, in {} kernels)", 1e3 * time.seconds, time.calls);
      row["gpu_ms_per_step"] = 1e3 * time.seconds;
      row["kernels_per_step"] = time.calls;
    }
    fmt::print(
        "{}, batch {} x {}, dropout {}: {:.0f} tokens/s, {:.1f} ms/step{}, {:.0f}% of that rate in its products\n",
        name, batch, config.max_length, config.encoder.dropout, rate, 1e3 * seconds, kernels,
        100 * 3 * product_flops(config) * rate / peak);
    std::fflush(stdout);
  };
  measure(
      "copy task", AutoregressiveConfig{}, 64,
      [](Key key, int64_t count) {
        const CopyBatch batch = CopyTask{}.batch(key, count);
        return slice_of(batch, batch.counted_positions, batch.tokens.size());
      },
      [](const AutoregressiveTransformer& model) {
        return loss_of<CopyBatch>([&model](const CopyBatch& batch, Key key) {
          return cross_entropy(model(batch.tokens, key), batch.targets, batch.mask);
        });
      });
  measure(
      "MNIST", paper_image_model("mnist"), 10,
      [](Key key, int64_t count) {
        std::vector<int32_t> bytes(static_cast<size_t>(count) * 783);
        for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<int32_t>(key.below(i, 256));
        const Indices tokens(Shape{count, 783}, bytes);
        return slice_of(ByteBatch{tokens, tokens}, static_cast<double>(count), tokens.size());
      },
      [](const AutoregressiveTransformer& model) {
        return loss_of<ByteBatch>([&model](const ByteBatch& batch, Key key) {
          const Tensor nll = logistic_mixture_nll(model(batch.tokens, key), batch.targets);
          return scale(sum(nll), 1 / static_cast<float>(nll.size()));
        });
      });
  if (o.json)
    print_json({{"bench", "training"}, {"machine", machine}, {"attention", o.attention.kind}, {"rows", rows}});
  return 0;
}

}  // namespace

void add_training_speed(Subcommand bench) {
  add_command<TrainingOptions>(bench, "training", "tokens/s with the paper's models", bench_training);
}

}  // namespace runnel
