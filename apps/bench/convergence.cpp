// runnel bench convergence: figure 2, the copy task's loss with each kind of attention.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "apps/bench/bench.h"
#include "apps/tasks/copy.h"
#include "apps/training/metrics.h"
#include "engine/check.h"

namespace runnel {
namespace {

// The mean training loss over the last tenth of a run's metrics.csv.
double last_losses(const std::filesystem::path& run) {
  std::vector<double> losses;
  for (MetricsRows rows(run); rows.next();) losses.push_back(rows["loss"]);
  const auto count = (std::ssize(losses) + 9) / 10;
  return std::accumulate(losses.end() - count, losses.end(), 0.0) / static_cast<double>(count);
}

struct ConvergenceOptions : RuntimeOptions {
  std::string preset = "small";
  std::string attention = "linear,softmax,lsh";
  int64_t steps = 0;
  std::string out = "runs/convergence";

  Settings list() override {
    return extended(
        RuntimeOptions::list(),
        {{"preset", &preset, one_of({"paper", "small", "tiny"}), "preset of copy train"},
         {"attention", &attention, {}, "kinds of attention to compare, separated by commas"},
         {"steps", &steps, in_range(0), "updates; 0: the preset's"},
         {"out", &out, {}, "folder for the plot and a run per kind of attention; existing runs are continued"},
         json_flag()});
  }
};

// One kind of attention after the other, on the same batches.
int bench_convergence(ConvergenceOptions& options) {
  const CopySettings preset = copy_preset(options.preset);
  std::string series, losses;
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& name : chosen_words("attention", options.attention, attention_names(true))) {
    CopySettings settings = preset;
    static_cast<RuntimeOptions&>(settings) = options;
    settings.model.encoder.attention.kind = name;
    if (options.steps) settings.steps = options.steps;
    set_run(settings, std::filesystem::path(options.out) / name);
    fmt::print("{} attention\n", name);
    if (const int status = train_copy(settings)) return status;
    series += (series.empty() ? "plot " : ", ") + data_file(std::filesystem::path(settings.out) / "metrics.csv") +
              " skip 1 using 1:2 with lines lw 2 title " + quoted(name);
    const double loss = last_losses(settings.out);
    losses += fmt::format("{:<8} {:.6f}\n", name, loss);
    rows.push_back({{"attention", name}, {"loss_nats", loss}, {"run", settings.out}});
  }
  fmt::print("mean loss in nats over the last tenth of the updates\n{}", losses);
  const std::filesystem::path png = std::filesystem::path(options.out) / "convergence.png";
  plot(png, "set title 'copy task, preset " + options.preset +
                "'; set xlabel 'updates'; set ylabel 'nats'; "
                "set logscale y; " +
                series);
  fmt::print("{}\n", png.string());
  if (options.json) print_json({{"bench", "convergence"}, {"preset", options.preset}, {"rows", rows}});
  return 0;
}

}  // namespace

void add_convergence(Subcommand bench) {
  add_command<ConvergenceOptions>(bench, "convergence", "figure 2: the copy task's loss with each kind of attention",
                                  bench_convergence);
}

}  // namespace runnel
