// runnel bench ladder: the rungs of docs/ladder.md side by side.
#include "ops/ladder/ladder.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/bench/bench.h"
#include "engine/check.h"

namespace runnel {
namespace {

struct LadderOptions : BenchOptions {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t heads = 8;

  Settings list() override {
    return extended(BenchOptions::list(),
                    {{"length", &length, in_range(0, 1 << 24), "positions; 0: the two sizes of docs/ladder.md"},
                     {"batch", &batch, in_range(0, 1 << 20), "sequences of --length positions; 0: one"},
                     {"heads", &heads, in_range(1, 1024), "heads, of 32 numbers each"}});
  }
};

struct Size {
  int64_t batch, length;
};

std::vector<Size> sizes(const LadderOptions& o) {
  if (o.length) return {{std::max<int64_t>(1, o.batch), o.length}};
  if (o.chosen_device() == Device::cuda) return {{10, 784}, {1, 65536}};
  return {{10, 1024}, {1, 4096}};  // at which the definition takes seconds
}

int bench_ladder(LadderOptions& o) {
  check<UsageError>(o.length || !o.batch, "--batch ", o.batch, " needs --length, too");
  const Device device = o.chosen_device();
  const std::vector<Rung> rungs = ladder(device);
  const std::vector<Size> all = sizes(o);
  fmt::print("y_i = sum_{{j<=i}} (q_i . k_j) v_j, forward only, H {}, E = M = 32\n", o.heads);
  Table table(o, "ladder", {"rung", "B", "L", "us", "times faster", "idea"}, std::ssize(rungs) * std::ssize(all));
  for (const Size& size : all) {
    const Shape shape{size.batch, size.length, o.heads, 32};
    const Tensor x = uniform(shape, Key{1}, device), a = uniform(shape, Key{2}, device),
                 b = uniform(shape, Key{3}, device);
    const Tensor y(shape, device);
    double first = 0;
    for (const Rung& rung : rungs) {
      const auto call = [&] { run(rung, y, x, a, b); };
      const double seconds =
          device == Device::cpu ? median_seconds(o, call) : cuda_seconds(o, 0.02, [&](int64_t) { call(); });
      if (first == 0) first = seconds;
      table.row({rung.name, std::to_string(size.batch), std::to_string(size.length),
                 fmt::format("{:.1f}", 1e6 * seconds), fmt::format("{:.1f}", first / seconds), rung.idea});
    }
  }
  table.finish();
  return 0;
}

}  // namespace

void add_ladder(Subcommand bench) {
  add_command<LadderOptions>(bench, "ladder",
                             "one product in several versions, from plain loops to the fastest: docs/ladder.md",
                             bench_ladder);
}

}  // namespace runnel
