// runnel bench convergence: figure 2, the copy task's loss with each kind of attention.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "apps/bench/sweep.h"
#include "apps/tasks/copy.h"
#include "apps/training/metrics.h"
#include "models/attention_kinds.h"

namespace runnel {
namespace {

// The mean training loss over the last tenth of a run's metrics.csv.
double last_losses(const std::filesystem::path& run) {
  std::vector<double> losses;
  for (MetricsRows rows(run); rows.next();) losses.push_back(rows["loss"]);
  const auto count = (std::ssize(losses) + 9) / 10;
  return std::accumulate(losses.end() - count, losses.end(), 0.0) / static_cast<double>(count);
}

struct ConvergenceOptions : SweepOptions {
  ConvergenceOptions() { systems = "linear,softmax,lsh", out = "runs/convergence"; }

  Settings list() override {
    return extended(SweepOptions::list(),
                    {{"attention", &systems, {}, "kinds of attention to compare, separated by commas"}});
  }
};

// Each on the same batches.
int bench_convergence(ConvergenceOptions& o) {
  const std::vector<std::string> kinds = chosen_words("attention", o.systems, attention_names(Forms::causal));
  Table table(o, "convergence-" + o.preset, sweep_columns("attention", {"loss_nats", "tokens_per_s"}),
              std::ssize(kinds) * o.seeds);
  std::string series;
  const auto settings = [&](const std::string& kind, uint64_t) {
    CopySettings s = copy_preset(o.preset);
    s.model.encoder.attention.kind = kind;
    return s;
  };
  const auto row = [&](const CopySettings& s) -> std::vector<std::string> {
    series += (series.empty() ? "plot " : ", ") + data_file(std::filesystem::path(s.out) / "metrics.csv") +
              " skip 1 using 1:2 with lines lw 2 title " + quoted(std::filesystem::path(s.out).filename().string());
    return {fmt::format("{:.6f}", last_losses(s.out)), fmt::format("{:.0f}", trained_rate(s.out))};
  };
  const int status = sweep(o, kinds, table, settings, train_copy, row);
  if (status) return status;
  plot(table.file(".png"), "set title 'copy task, preset " + o.preset +
                               "'; set xlabel 'updates'; set ylabel 'nats'; "
                               "set logscale y; " +
                               series);
  return 0;
}

}  // namespace

void add_convergence(Subcommand bench) {
  add_command<ConvergenceOptions>(bench, "convergence", "figure 2: the copy task's loss with each kind of attention",
                                  bench_convergence);
}

}  // namespace runnel
