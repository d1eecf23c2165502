// A benchmark that trains: one run of each system with each seed, in one table.
#pragma once
#include <fmt/format.h>

#include "apps/bench/bench.h"
#include "apps/training/settings.h"
#include "models/checkpoint.h"

namespace runnel {

struct SweepOptions : BenchOptions {
  std::string preset = "small";
  std::string systems;  // separated by commas
  int64_t seeds = 1;
  int64_t steps = 0;
  double minutes = 0;  // of a run; 0: as the preset says, and with --steps no limit. Of benchmarks that list it

  Settings list() override {
    return extended(
        RuntimeOptions::list(),
        {{"preset", &preset, one_of({"paper", "small", "tiny"}), "preset of the task's train"},
         {"seeds", &seeds, in_range(1, 1000), "runs of each system, with seeds from --seed on"},
         {"steps", &steps, in_range(0), "updates of a run, without a limit of time; 0: as the preset says"},
         {"out", &out, {}, "folder for the table (CSV), the plot and the runs; existing runs are continued"},
         json_flag()});
  }
};

// The first columns of its table, before those of `row`.
inline std::vector<std::string> sweep_columns(const std::string& system, std::vector<std::string> more) {
  std::vector<std::string> columns{system, "seed", "updates"};
  columns.insert(columns.end(), more.begin(), more.end());
  return columns;
}

inline std::string saved_updates(const TrainSettings& run) {
  return std::to_string(read_checkpoint(std::filesystem::path(run.out) / "last.safetensors").step());
}

// `settings` makes those of a run, a struct that derives from TrainSettings; `train` returns an exit status, and ends
// the sweep if it is not 0; `row` measures the trained model. A run lies in the folder of the table's name, as
// <system>-<seed>, and is continued if it is there.
template <class MakeSettings, class Train, class Row>
int sweep(const SweepOptions& o, const std::vector<std::string>& systems, Table& table, const MakeSettings& settings,
          const Train& train, const Row& row) {
  for (int64_t i = 0; i < o.seeds; ++i)
    for (const std::string& system : systems) {
      const uint64_t seed = o.seed + static_cast<uint64_t>(i);
      auto s = settings(system, seed);
      static_cast<RuntimeOptions&>(s) = o;
      s.seed = seed;
      if (o.steps) s.steps = o.steps, s.minutes = o.minutes;
      set_run(s, table.file("") / fmt::format("{}-{}", system, seed));
      table.note(fmt::format("{}, seed {}", system, seed));
      if (const int status = train(s)) return status;
      std::vector<std::string> cells{system, std::to_string(seed), saved_updates(s)};
      const std::vector<std::string> measured = row(s);
      cells.insert(cells.end(), measured.begin(), measured.end());
      table.row(cells);
    }
  table.finish();
  return 0;
}

}  // namespace runnel
