// runnel bench lra: accuracies of kinds of attention on a task of Long Range Arena, beside published ones.
#include "apps/lra/published.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/bench/sweep.h"
#include "apps/lra/classification.h"
#include "engine/check.h"
#include "engine/memory.h"
#include "models/attention_kinds.h"

namespace runnel {
namespace {

struct ArenaOptions : SweepOptions {
  std::string task = "listops";
  std::string data;
  int64_t generated = 0;
  int64_t limit = 0;

  ArenaOptions() { out = "runs/lra"; }

  Settings list() override {
    Choices tasks;
    for (const ClassificationDataset* dataset : classification_datasets) tasks.push_back(dataset->name);
    return extended(
        SweepOptions::list(),
        {{"task", &task, one_of(tasks), "task"},
         {"attention", &systems, {}, "kinds of attention, separated by commas; default: all"},
         {"data", &data, {}, "data of the task, as in its train"},
         {"minutes", &minutes, in_range(0, 1e6), "training time of a run; 0: the preset's"},
         {"generated", &generated, in_range(0, 1e7), "images of pathfinder to generate, from 100; 0: the preset's"},
         {"limit", &limit, in_range(0, 1e9), "test only on so many samples; 0: all"}});
  }
};

// Score over speed; the area of a dot is the memory.
void bubble_plot(const Table& table, const std::string& task, double max_bytes) {
  plot(table.file(".png"),
       "set title " + quoted(task + ": the size of a dot is the memory of training") +
           "; set xlabel 'tokens per second in training'; set format x '%.0s%c'; set ylabel 'test accuracy in per "
           "cent'; unset key; set datafile missing '-'; set xrange [0:*]; set offsets 0, graph 0.1, graph 0.15, graph "
           "0.1; plot " +
           table.source() + " skip 2 using 7:5:(2+6*sqrt($8/" + std::to_string(max_bytes) +
           ")) with points pt 7 ps variable lc rgb '#a03060b0', " + table.source() +
           " skip 2 using 7:5:1 with labels offset 0,1.5");
}

int bench_lra(ArenaOptions& o) {
  const ClassificationDataset& dataset =
      **std::find_if(std::begin(classification_datasets), std::end(classification_datasets),
                     [&](const auto* d) { return d->name == o.task; });
  const std::vector<std::string> kinds = chosen_words("attention", o.systems, attention_names(Forms::full));
  ClassificationSettings base = classification_preset(dataset, o.preset);
  static_cast<RuntimeOptions&>(base) = o;
  base.data = o.data;
  if (o.minutes > 0) base.minutes = o.minutes, base.steps = 1000000;
  if (o.generated) base.generated = o.generated;
  check<UsageError>(!o.generated || !dataset.difficulties.empty(), "--generated: the samples of ", o.task,
                    " cannot be chosen in number");
  check<UsageError>(!o.generated || o.generated >= 100, "--generated ", o.generated, " is below 100");
  const ClassificationData data = load_data(base);
  const std::vector<int64_t> samples = some_samples(data.test, o.limit);

  const std::vector<std::string> sources{"lra", "flashattention", "skyformer", "nystromformer"};
  std::vector<std::string> columns{"parameters", "accuracy_percent", "loss_nats", "tokens_per_s", "peak_bytes"};
  columns.insert(columns.end(), sources.begin(), sources.end());
  columns = sweep_columns("attention", columns);
  std::vector<Probe> probes;
  if (dataset.probes) probes = dataset.probes(base, data);
  Table table(o, o.task + "-" + o.preset, columns, std::ssize(kinds) * o.seeds + std::ssize(probes));
  for (const Probe& probe : probes) {  // accuracies without reading the sequence
    std::vector<std::string> cells(columns.size(), "-");
    cells[0] = probe.name;
    cells[4] = fmt::format("{:.2f}", probe.accuracy);
    table.row(cells);
  }

  double bytes = 0, max_bytes = 1;
  const auto settings = [&](const std::string& kind, uint64_t) {
    ClassificationSettings s = base;
    set_attention(s, kind);
    return s;
  };
  const auto train = [&](ClassificationSettings& s) {
    const std::string before = s.resume ? saved_updates(s) : "0";
    reset_peak(o.chosen_device());
    if (const int status = train_classification(s, data)) return status;
    bytes = before == saved_updates(s) ? 0 : static_cast<double>(memory_use(o.chosen_device()).peak);
    max_bytes = std::max(max_bytes, bytes);
    return 0;
  };
  const auto row = [&](const ClassificationSettings& s) {
    const LoadedClassifier loaded(s.out, dataset, o);
    const Score result =
        score(predict(loaded.model, data.test, samples, s.view(), s.batch, Progress("tested")), data.test, samples);
    std::vector<std::string> cells{std::to_string(element_count(loaded.model.parameters())),
                                   fmt::format("{:.2f}", result.accuracy), fmt::format("{:.5f}", result.loss),
                                   fmt::format("{:.0f}", trained_rate(s.out)),
                                   bytes > 0 ? fmt::format("{:.0f}", bytes) : "-"};
    for (const std::string& source : sources) {
      const std::optional<double> accuracy = published(s.model.encoder.attention.kind, source + "_" + o.task);
      cells.push_back(accuracy ? fmt::format("{:.2f}", *accuracy) : "-");
    }
    return cells;
  };
  const int status = sweep(o, kinds, table, settings, train, row);
  if (status) return status;
  bubble_plot(table, o.task, max_bytes);
  return 0;
}

}  // namespace

void add_lra(Subcommand bench) {
  add_command<ArenaOptions>(bench, "lra",
                            "Long Range Arena: accuracies of the kinds of attention, beside published ones", bench_lra);
}

}  // namespace runnel
