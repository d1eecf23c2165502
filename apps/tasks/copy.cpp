// The copy task of figure 2: a model reads a random sequence of ten symbols and a separator, and must write the
// sequence again. It needs no data and shows within minutes that causal linear attention can look something up.
#include "apps/tasks/copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "apps/cli/terminal.h"
#include "apps/cli/trained_model.h"
#include "apps/tasks/tasks.h"
#include "apps/training/communicator.h"
#include "apps/training/task.h"
#include "datasets/copy_task.h"
#include "engine/check.h"
#include "engine/finite_guard.h"
#include "models/decoder.h"
#include "ops/losses.h"
#include "ops/reductions.h"

namespace runnel {
namespace {

struct CopyEvaluateOptions : ModelOptions {
  int64_t sequences = 1000;
  int64_t show = 4;

  Settings list() override {
    return extended(ModelOptions::list(),
                    {{"sequences", &sequences, in_range(1, 1e9), "fresh sequences to measure on"},
                     {"show", &show, in_range(0, 1000), "sequences to print with the model's copy"},
                     json_flag()});
  }
};

class CopyTraining : public TaskOf<CopyBatch> {
 public:
  explicit CopyTraining(const CopySettings& settings)
      : settings_(settings),
        data_{.length = settings.length},
        model_(settings.model_for(data_.vocabulary(), data_.vocabulary(), data_.length),
               key_for(settings.seed, Purpose::initialisation), settings.chosen_device()) {}

  std::string name() const override { return "copy"; }
  Parameters parameters() const override { return model_.parameters(); }
  nlohmann::json model() const override { return model_json(model_.config); }
  std::vector<Metric> metrics() const override { return {{"validation", Unit::nats}}; }

  Slice slice(int64_t first, int64_t count) const override {
    const Key key = key_for(settings_.seed, Purpose::training).fold(static_cast<uint64_t>(first / settings_.batch));
    const CopyBatch batch = data_.batch(key, count, Device::cpu, first % settings_.batch);
    return slice_of(batch, batch.counted_positions, batch.tokens.size());
  }
  Tensor loss(const CopyBatch& batch, std::optional<Key> key) const override {
    return cross_entropy(model_(batch.tokens, key), batch.targets, batch.mask);
  }

  std::vector<double> validate(const WorkDone& report) const override {
    const int64_t part = settings_.sequences_at_a_time();
    const auto losses = map_over_ranks((settings_.batch + part - 1) / part, [&](int64_t i) -> std::vector<double> {
      const int64_t first = i * part;
      report(first, settings_.batch);
      const CopyBatch batch = data_.batch(key_for(settings_.seed, Purpose::validation),
                                          std::min(part, settings_.batch - first), model_.device(), first);
      return {batch.counted_positions * loss(batch, {}).item(), batch.counted_positions};
    });
    double total = 0, weight = 0;
    for (const std::vector<double>& one : losses) total += one[0], weight += one[1];
    return {total / weight};
  }

 private:
  const CopySettings& settings_;
  const CopyTask data_;
  const AutoregressiveTransformer model_;
};

std::string letters(const std::vector<int32_t>& symbols) {
  std::string text;
  for (const int32_t symbol : symbols) text += symbol == 0 ? '.' : static_cast<char>('a' + symbol - 1);
  return text;
}

// Reads the sequence and the separator, then writes as many symbols, each read back as the next input.
std::vector<int32_t> copy_of(const AutoregressiveTransformer& model, const std::vector<int32_t>& sequence) {
  const std::unique_ptr<Decoder> decoder = make_decoder(model, 1);
  for (const int32_t symbol : sequence) decoder->read(Indices({1}, {symbol}, model.device()));
  std::vector<int32_t> written;
  for (int32_t symbol = 0; written.size() < sequence.size(); written.push_back(symbol))
    symbol = argmax(decoder->step(Indices({1}, {symbol}, model.device()))).to_vector()[0];
  return written;
}

int evaluate_copy(CopyEvaluateOptions& options) {
  const Checkpoint checkpoint = trained_model(options.model, "copy");
  const AutoregressiveTransformer model = load_model<AutoregressiveTransformer>(checkpoint, options.chosen_device());
  const CopyTask data{.length = model.config.max_length};
  const Key key = key_for(options.seed, Purpose::sampling);

  int64_t right = 0, counted = 0;
  const Progress progress("evaluated sequence");
  for (int64_t done = 0; done < options.sequences;) {
    const int64_t size = std::min<int64_t>(64, options.sequences - done);
    const CopyBatch batch = data.batch(key.fold(static_cast<uint64_t>(done)), size);
    const Tensor logits = model(batch.tokens.to(options.chosen_device()));
    finite_output(logits);
    const std::vector<int32_t> guess = argmax(logits).to_vector();
    for (size_t i = 0; i < guess.size(); ++i)
      if (batch.mask.data()[i] > 0) {
        ++counted;
        right += guess[i] == batch.targets.data()[i];
      }
    done += size;
    progress(done, options.sequences);
  }
  const double accuracy = 100 * static_cast<double>(right) / static_cast<double>(counted);
  if (!options.json) {
    fmt::print("{}, step {}\n", checkpoint.path.string(), checkpoint.step());
    fmt::print("masked accuracy {:.3f}% on {} fresh sequences ({} of {} symbols)\n", accuracy, options.sequences, right,
               counted);
  }
  nlohmann::json copies = nlohmann::json::array();
  for (int64_t i = 0; i < options.show; ++i) {
    const CopyBatch one = data.batch(key.fold(0).fold(static_cast<uint64_t>(i)), 1);
    const std::vector<int32_t> tokens = one.tokens.to_vector();
    const std::vector<int32_t> sequence(tokens.begin(), std::find(tokens.begin(), tokens.end(), 0));
    const std::vector<int32_t> written = copy_of(model, sequence);
    const auto wrong =
        std::inner_product(sequence.begin(), sequence.end(), written.begin(), 0, std::plus<>(), std::not_equal_to<>());
    copies.push_back({{"in", letters(sequence)}, {"out", letters(written)}, {"wrong", wrong}});
    if (!options.json) fmt::print("in   {}\nout  {}  {} wrong\n", letters(sequence), letters(written), wrong);
  }
  if (options.json)
    print_json({{"model", checkpoint.path.string()},
                {"step", checkpoint.step()},
                {"masked_accuracy_percent", accuracy},
                {"sequences", options.sequences},
                {"symbols", counted},
                {"symbols_right", right},
                {"copies", copies}});
  return 0;
}

}  // namespace

Settings CopySettings::list() {
  return extended(TransformerSettings::list(),
                  {{"length", &length, in_range(5, 1 << 20), "positions: sequence, separator, copy and padding"}});
}

namespace {

const Presets& presets() {
  static const Presets all{
      {"paper", "--attention-dropout 0.1"},
      {"small",
       "--length 64 --layers 2 --width 128 --heads 4 --feed-forward 512 --embedding-dropout 0.1 --attention-dropout 0 "
       "--steps 4000"},
      {"tiny",
       "--length 32 --width 64 --feed-forward 256 --batch 32 --steps 3000 --lr-step 2500 --optimizer muon --dropout 0 "
       "--embedding-dropout 0",
       "small"}};
  return all;
}

}  // namespace

CopySettings copy_preset(const std::string& name) { return with_preset(CopySettings(), presets(), name); }

int train_copy(CopySettings& settings) { return train(CopyTraining(settings), settings, config_json(settings)); }

void add_copy(Subcommand program) {
  program.add("copy", "the copy task (figure 2); needs no data", [](Subcommand copy) {
    add_training<CopySettings>(copy, "train a model; defaults are the paper's", {}, presets(), train_copy);
    add_command<CopyEvaluateOptions>(copy, "evaluate", "masked accuracy, and some sequences with the model's copy",
                                     evaluate_copy);
  });
}

}  // namespace runnel
