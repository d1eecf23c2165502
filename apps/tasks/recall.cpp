// runnel recall: multi-query associative recall. In each update all sequences have as many pairs, and as many positions
// as are customary for them. Updates differ in the number of pairs, since many pairs alone are hard to learn.
#include "apps/tasks/recall.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "apps/cli/terminal.h"
#include "apps/cli/trained_model.h"
#include "apps/plots/pictures.h"
#include "apps/tasks/tasks.h"
#include "apps/training/task.h"
#include "datasets/recall_task.h"
#include "engine/check.h"
#include "engine/finite_guard.h"
#include "models/settings_text.h"
#include "ops/losses.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

constexpr int64_t beyond = 4;  // a model is asked for up to so many times as many pairs as it is trained on

// Of sequences with so many pairs: 64 for 4, 128 for 8 and from 16 pairs on 256, as is customary in training; four for
// each pair if there are many.
int64_t length_for(int64_t pairs, int64_t longest) { return std::max(4 * pairs, std::min(16 * pairs, longest)); }

// The predictor's logits at the places that are asked for: [B N,V].
Tensor answers(const AutoregressiveTransformer& model, const RecallBatch& batch, std::optional<Key> key = {}) {
  const Tensor x = model.features(batch.tokens, key);
  return model.predictor(gather(reshape(x, Shape{x.shape()[0] * x.shape()[1], x.shape()[2]}), batch.places));
}

struct Score {
  double accuracy, nats;  // per cent; the mean loss
};
Score score(const AutoregressiveTransformer& model, Key key, int64_t sequences, int64_t length, int64_t pairs,
            const WorkDone& report) {
  const RecallTask task{.vocabulary = model.config.vocabulary};
  const int64_t part = std::max<int64_t>(1, 4096 / length);
  const auto parts = map_over_ranks((sequences + part - 1) / part, [&](int64_t i) -> std::vector<double> {
    const int64_t first = i * part, count = std::min(part, sequences - first);
    report(first, sequences);
    RecallBatch batch = task.batch(key, count, length, pairs, first);
    batch = {batch.tokens.to(model.device()), batch.places.to(model.device()), batch.values.to(model.device())};
    const Tensor logits = answers(model, batch);
    finite_output(logits);
    const std::vector<int32_t> said = argmax(logits).to_vector(), right = batch.values.to_vector();
    double equal = 0;
    for (size_t n = 0; n < said.size(); ++n) equal += said[n] == right[n];
    return {equal, static_cast<double>(count) * cross_entropy(logits, batch.values).item()};
  });
  double equal = 0, nats = 0;
  for (const std::vector<double>& one : parts) equal += one[0], nats += one[1];
  const auto all = static_cast<double>(sequences);
  return {100 * equal / (all * static_cast<double>(pairs)), nats / all};
}

class RecallTraining : public TaskOf<RecallBatch> {
 public:
  explicit RecallTraining(const RecallSettings& s)
      : settings_(s),
        task_{.vocabulary = s.vocabulary},
        model_(s.model_for(s.vocabulary, s.vocabulary, beyond * s.length), key_for(s.seed, Purpose::initialisation),
               s.chosen_device()) {}

  std::string name() const override { return "recall"; }
  Parameters parameters() const override { return model_.parameters(); }
  nlohmann::json model() const override { return model_json(model_.config); }
  std::vector<Metric> metrics() const override {
    return {{"accuracy", Unit::percent, true}, {"validation", Unit::nats}};
  }

  Slice slice(int64_t first, int64_t count) const override {
    const int64_t step = first / settings_.batch;
    const Key key = key_for(settings_.seed, Purpose::training).fold(static_cast<uint64_t>(step));
    const auto kinds =
        static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, settings_.pairs / 4))));
    // As many as at most, a half, ... and at least 4; as many as at most in the first update, which --dry-run measures.
    const int64_t pairs = settings_.pairs >> (step == 0 ? 0 : key.below(0, kinds));
    const RecallBatch batch =
        task_.batch(key.fold(0), count, length_for(pairs, settings_.length), pairs, first % settings_.batch);
    return slice_of(batch, static_cast<double>(batch.values.size()), batch.tokens.size());
  }
  Tensor loss(const RecallBatch& batch, std::optional<Key> key) const override {
    return cross_entropy(answers(model_, batch, key), batch.values);
  }
  std::vector<double> validate(const WorkDone& report) const override {
    const Score all =
        score(model_, key_for(settings_.seed, Purpose::validation), 128, settings_.length, settings_.pairs, report);
    return {all.accuracy, all.nats};
  }

 private:
  const RecallSettings& settings_;
  const RecallTask task_;
  const AutoregressiveTransformer model_;
};

// paper: the task of the Zoology paper, at width 64. small: fewer tokens; tiny: fewer pairs, too.
const Presets& recall_presets() {
  static const Presets all{
      {"paper",
       "--layers 2 --width 64 --heads 1 --feed-forward 256 --dropout 0 --attention-dropout 0 --embedding-dropout 0 "
       "--batch 64 --steps 50000 --optimizer adamw --lr 1e-3 --warmup 500 --schedule cosine --weight-decay 0.1 --beta2 "
       "0.98 --evaluate-every 500 --save-every 500"},
      {"small",
       "--minutes 15 --steps 1000000 --vocabulary 1024 --batch 32 --optimizer muon --lr 5e-3 --schedule quadratic "
       "--weight-decay 0",
       "paper"},
      {"tiny", "--minutes 3 --vocabulary 256 --length 64 --pairs 16", "small"}};
  return all;
}

struct RecallEvaluateOptions : ModelOptions {
  int64_t sequences = 256;
  std::string out;

  Settings list() override {
    return extended(ModelOptions::list(),
                    {{"sequences", &sequences, in_range(1, 1e9), "fresh sequences for each number of pairs"},
                     {"out", &out, {}, "PNG file for a plot of the accuracy over the number of pairs"},
                     json_flag()});
  }
};

int evaluate_recall(RecallEvaluateOptions& o) {
  const std::string path = trained_model(o.model, "recall").path.string();
  if (!o.out.empty()) check_png_replaceable(o.out);
  if (!o.json) fmt::print("{}\n{:>6}  {:>6}  accuracy\n", path, "pairs", "length");
  nlohmann::json rows = nlohmann::json::array();
  const std::vector<Recalled> data = measure_recall(o.model, o.sequences, o);
  for (const Recalled& one : data) {
    if (!o.json) fmt::print("{:>6}  {:>6}  {:.2f}%\n", one.pairs, one.length, one.accuracy);
    rows.push_back({{"pairs", one.pairs}, {"length", one.length}, {"accuracy_percent", one.accuracy}});
  }
  if (!o.out.empty()) plot(o.out, recall_plot({{"accuracy", data}}));
  if (o.json) print_json({{"model", path}, {"sequences", o.sequences}, {"recall", rows}});
  return 0;
}

}  // namespace

Settings RecallSettings::list() { return extended(TransformerSettings::list(), task_settings()); }

Settings RecallSettings::task_settings() {
  return {{"length", &length, in_range(16, 1 << 16), "positions of the longest training sequences"},
          {"pairs", &pairs, in_range(4, 1 << 14), "pairs of key and value in a training sequence, at most"},
          {"vocabulary", &vocabulary, in_range(10, 1 << 20), "tokens, of which half are keys and half values"}};
}

RecallSettings recall_preset(const std::string& name) { return with_preset(RecallSettings(), recall_presets(), name); }

int train_recall(RecallSettings& s) {
  check<UsageError>(4 * s.pairs <= s.length, "--length ", s.length, " is too short for --pairs ", s.pairs, ": ",
                    4 * s.pairs, " positions are needed");
  check<UsageError>(s.pairs < s.vocabulary / 2, "--vocabulary ", s.vocabulary, " has fewer keys than --pairs ",
                    s.pairs);
  return train(RecallTraining(s), s, config_json(s));
}

std::vector<int64_t> asked_pairs(const RecallSettings& s) {
  std::vector<int64_t> asked;
  for (int64_t pairs = 4; pairs <= beyond * s.pairs && pairs < s.vocabulary / 2; pairs *= 2) asked.push_back(pairs);
  return asked;
}

std::vector<Recalled> measure_recall(const std::string& model, int64_t sequences, const RuntimeOptions& options) {
  const Checkpoint checkpoint = trained_model(model, "recall");
  RecallSettings s;
  const std::string problem =
      checkpoint.config.is_object() ? read_json(s.task_settings(), checkpoint.config) : "no settings";
  check(problem.empty(), checkpoint.path.string(), " is damaged: ", problem);
  const auto trained = load_model<AutoregressiveTransformer>(checkpoint, options.chosen_device());
  check(trained.config.vocabulary == s.vocabulary && trained.config.outputs == s.vocabulary &&
            trained.config.max_length >= beyond * s.length && 4 * s.pairs <= s.length && s.pairs < s.vocabulary / 2,
        checkpoint.path.string(), " is damaged: its model is not that of its settings");
  std::vector<Recalled> all;
  for (const int64_t pairs : asked_pairs(s)) {
    const int64_t length = length_for(pairs, s.length);
    const Key key = key_for(options.seed, Purpose::sampling).fold(static_cast<uint64_t>(pairs));
    all.push_back(
        {pairs, length, score(trained, key, sequences, length, pairs, Progress("measured sequence")).accuracy});
  }
  return all;
}

std::string recall_plot(const std::vector<std::pair<std::string, std::vector<Recalled>>>& curves) {
  std::string arrays, series;
  for (size_t n = 0; n < curves.size(); ++n) {
    const auto& [title, points] = curves[n];
    std::string x, y;
    for (const Recalled& one : points) {
      x += fmt::format("{}{}", x.empty() ? "" : ",", one.pairs);
      y += fmt::format("{}{}", y.empty() ? "" : ",", one.accuracy);
    }
    arrays += fmt::format("array X{0}[{1}] = [{2}]; array Y{0}[{1}] = [{3}]; ", n, points.size(), x, y);
    series += fmt::format("{}Y{} using (X{}[$1]):2 with linespoints pt 7 lw 2 title {}", n ? ", " : "plot ", n, n,
                          quoted(title));
  }
  return arrays +
         "set datafile separator whitespace; set key outside; set logscale x 2; set yrange [0:105]; set xlabel "
         "'pairs'; set ylabel 'accuracy, %'; " +
         series;
}

void add_recall(Subcommand program) {
  program.add("recall", "associative recall: the value of each key; needs no data", [](Subcommand recall) {
    add_training<RecallSettings>(recall, "train a model", {}, recall_presets(), train_recall);
    add_command<RecallEvaluateOptions>(recall, "evaluate", "accuracy over the number of pairs", evaluate_recall);
  });
}

}  // namespace runnel
