// runnel bench recall: how many pairs each kind of attention recalls.
#include <fmt/format.h>

#include "apps/bench/sweep.h"
#include "apps/tasks/recall.h"
#include "models/attention_kinds.h"

namespace runnel {
namespace {

struct RecallOptions : SweepOptions {
  RecallOptions() { out = "runs/recall-bench"; }

  Settings list() override {
    return extended(SweepOptions::list(),
                    {{"attention", &systems, {}, "kinds of attention to compare, separated by commas; default: all"}});
  }
};

int bench_recall(RecallOptions& o) {
  const std::vector<std::string> kinds = chosen_words("attention", o.systems, attention_names(Forms::causal));
  std::vector<std::string> columns{"tokens_per_s"};
  for (const int64_t pairs : asked_pairs(recall_preset(o.preset))) columns.push_back(fmt::format("pairs_{}", pairs));
  Table table(o, "recall-" + o.preset, sweep_columns("attention", columns), std::ssize(kinds) * o.seeds);
  std::vector<std::pair<std::string, std::vector<Recalled>>> curves;
  const auto settings = [&](const std::string& kind, uint64_t) {
    RecallSettings s = recall_preset(o.preset);
    s.model.encoder.attention.kind = kind;
    return s;
  };
  const auto row = [&](const RecallSettings& s) {
    std::vector<std::string> cells{fmt::format("{:.0f}", trained_rate(s.out))};
    curves.emplace_back(std::filesystem::path(s.out).filename().string(), measure_recall(s.out, 100, s));
    for (const Recalled& one : curves.back().second) cells.push_back(fmt::format("{:.2f}", one.accuracy));
    return cells;
  };
  if (const int status = sweep(o, kinds, table, settings, train_recall, row)) return status;
  plot(table.file(".png"), "set title 'associative recall, preset " + o.preset + "'; " + recall_plot(curves));
  return 0;
}

}  // namespace

void add_recall_benchmark(Subcommand bench) {
  add_command<RecallOptions>(bench, "recall", "how many pairs each kind of attention recalls", bench_recall);
}

}  // namespace runnel
