// runnel bench lra: accuracies of kinds of attention on a task of Long Range Arena, beside published ones.
#include "apps/lra/published.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/bench/bench.h"
#include "apps/lra/classification.h"
#include "apps/training/metrics.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/memory.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

struct ArenaOptions : RuntimeOptions {
  std::string task = "listops";
  std::string attention;
  std::string preset = "small";
  std::string data;
  int64_t seeds = 1;
  int64_t steps = 0;
  double minutes = 0;
  int64_t generated = 0;
  int64_t limit = 0;
  std::string out = "runs/lra";

  Settings list() override {
    Choices tasks;
    for (const ClassificationDataset* dataset : classification_datasets) tasks.push_back(dataset->name);
    return extended(
        RuntimeOptions::list(),
        {{"task", &task, one_of(tasks), "task"},
         {"attention", &attention, {}, "kinds of attention, separated by commas; default: all"},
         {"preset", &preset, one_of({"paper", "small", "tiny"}), "preset of the task's train"},
         {"data", &data, {}, "data of the task, as in its train"},
         {"seeds", &seeds, in_range(1, 1000), "runs of each kind, with seeds from --seed on"},
         {"steps", &steps, in_range(0), "updates of a run; 0: the preset's"},
         {"minutes", &minutes, in_range(0, 1e6), "training time of a run; 0: the preset's"},
         {"generated", &generated, in_range(0, 1e7), "images of pathfinder to generate, from 100; 0: the preset's"},
         {"limit", &limit, in_range(0, 1e9), "test only on so many samples; 0: all"},
         {"out", &out, {}, "folder for the tables, the plot and the runs; existing runs are continued"},
         json_flag()});
  }
};

struct Cell {
  std::string kind;
  uint64_t seed;
  int64_t parameters, step;
  double accuracy, loss, rate, bytes;
};

// Score over speed; the area of a dot is the memory.
void bubble_plot(const fs::path& csv, const fs::path& png, const std::string& task, double max_bytes) {
  plot(png, "set title " + quoted(task + ": the size of a dot is the memory of training") +
                "; set xlabel 'tokens per second in training'; set format x '%.0s%c'; set ylabel 'test accuracy in per "
                "cent'; "
                "unset key; set xrange [0:*]; set offsets 0, graph 0.1, graph 0.15, graph 0.1; plot " +
                data_file(csv) + " skip 1 using 7:5:(2+6*sqrt($8/" + std::to_string(max_bytes) +
                ")) with points pt 7 ps variable lc rgb '#a03060b0', " + data_file(csv) +
                " skip 1 using 7:5:1 with labels offset 0,1.5");
}

int bench_lra(ArenaOptions& o) {
  const ClassificationDataset& dataset =
      **std::find_if(std::begin(classification_datasets), std::end(classification_datasets),
                     [&](const auto* d) { return d->name == o.task; });
  const std::vector<std::string> kinds = chosen_words("attention", o.attention, attention_names(false));
  ClassificationSettings base = classification_preset(dataset, o.preset);
  static_cast<RuntimeOptions&>(base) = o;
  base.data = o.data;
  if (o.steps) base.steps = o.steps, base.minutes = 0;
  if (o.minutes > 0) base.minutes = o.minutes, base.steps = o.steps ? o.steps : 1000000;
  if (o.generated) base.generated = o.generated;
  check<UsageError>(!o.generated || !dataset.difficulties.empty(), "--generated: the samples of ", o.task,
                    " cannot be chosen in number");
  check<UsageError>(!o.generated || o.generated >= 100, "--generated ", o.generated, " is below 100");
  const ClassificationData data = load_data(base);
  std::vector<Probe> probes;
  if (dataset.probes) probes = dataset.probes(base, data);

  const fs::path folder = fs::path(o.out) / (o.task + "-" + o.preset);
  fs::create_directories(folder);
  std::vector<Cell> cells;
  double max_bytes = 1;
  for (const std::string& kind : kinds)
    for (int64_t i = 0; i < o.seeds; ++i) {
      ClassificationSettings settings = base;
      set_attention(settings, kind);
      settings.seed = o.seed + static_cast<uint64_t>(i);
      set_run(settings, folder / fmt::format("{}-{}", kind, settings.seed));
      fmt::print("{} attention, seed {}\n", kind, settings.seed);
      const auto updates = [&] { return read_checkpoint(fs::path(settings.out) / "last.safetensors").step(); };
      const int64_t before = settings.resume ? updates() : 0;
      reset_peak(o.chosen_device());
      if (const int status = train_classification(settings, data)) return status;
      const int64_t step = updates();
      const double bytes =
          step > before ? static_cast<double>(memory_use(o.chosen_device()).peak) : 0;  // 0: no update was made
      const LoadedClassifier loaded(settings.out, dataset, o);
      const std::vector<int64_t> samples = some_samples(data.test, o.limit);
      const Score result =
          score(predict(loaded.model, data.test, samples, settings.view(), settings.batch, Progress("tested")),
                data.test, samples);
      cells.push_back({kind, settings.seed, element_count(loaded.model.parameters()), step, result.accuracy,
                       result.loss, trained_rate(settings.out), bytes});
      max_bytes = std::max(max_bytes, bytes);
      fmt::print("{}: test accuracy {:.2f}%\n", kind, result.accuracy);

      // After each run, so that what is there can be looked at.
      std::string csv =
          "attention,seed,parameters,updates,test_accuracy_percent,test_loss_nats,tokens_per_second,peak_bytes\n";
      std::string page =
          fmt::format("# Long Range Arena: {}, preset {}\n\nTest accuracy in per cent of {} samples, {}.\n\n", o.task,
                      o.preset, samples.size(), data.test.name);
      page +=
          "Published are LRA (Tay et al. 2021), whose models differ in size, FlashAttention (Dao et al. 2022), "
          "Skyformer "
          "(Chen et al. 2021) and Nystromformer (Xiong et al. 2021). A run with fewer updates than theirs does not "
          "compare with them.\n\n";
      if (!probes.empty()) page += "What can be had without reading the sequence:\n\n";
      for (const Probe& probe : probes) page += fmt::format("* {:.1f}%: {}\n", probe.accuracy, probe.name);
      page +=
          "\n| attention | seed | updates | parameters | here | tokens/s | peak memory | LRA | FlashAttention | "
          "Skyformer | Nystromformer |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: "
          "|\n";
      for (const Cell& c : cells) {
        csv += fmt::format("{},{},{},{},{:.3f},{:.5f},{:.0f},{:.0f}\n", c.kind, c.seed, c.parameters, c.step,
                           c.accuracy, c.loss, c.rate, c.bytes);
        const auto their = [&](const std::string& source) {
          const std::optional<double> accuracy = published(c.kind, source + "_" + o.task);
          return accuracy ? fmt::format("{:.2f}", *accuracy) : "-";
        };
        page += fmt::format("| {} | {} | {} | {} | {:.2f} | {} | {} | {} | {} | {} | {} |\n", c.kind, c.seed,
                            grouped(static_cast<double>(c.step)), grouped(static_cast<double>(c.parameters)),
                            c.accuracy, grouped(c.rate), c.bytes > 0 ? bytes_text(c.bytes) : "-", their("lra"),
                            their("flashattention"), their("skyformer"), their("nystromformer"));
      }
      write_atomically(folder / "lra.csv", {csv});
      write_atomically(folder / "lra.md", {page});
    }
  bubble_plot(folder / "lra.csv", folder / "lra.png", o.task, max_bytes);
  fmt::print("{}", read_file(folder / "lra.md", 1 << 20));
  nlohmann::json rows = nlohmann::json::array(), shortcuts = nlohmann::json::array();
  for (const Probe& probe : probes) shortcuts.push_back({{"name", probe.name}, {"accuracy_percent", probe.accuracy}});
  for (const Cell& c : cells)
    rows.push_back({{"attention", c.kind},
                    {"seed", c.seed},
                    {"updates", c.step},
                    {"parameters", c.parameters},
                    {"test_accuracy_percent", c.accuracy},
                    {"test_loss_nats", c.loss},
                    {"tokens_per_second", c.rate},
                    {"peak_bytes", c.bytes}});
  if (o.json)
    print_json({{"bench", "lra"}, {"task", o.task}, {"preset", o.preset}, {"shortcuts", shortcuts}, {"rows", rows}});
  return 0;
}

}  // namespace

void add_lra(Subcommand bench) {
  add_command<ArenaOptions>(bench, "lra",
                            "Long Range Arena: accuracies of the kinds of attention, beside published ones", bench_lra);
}

}  // namespace runnel
