// runnel bench ladder: the rungs of docs/ladder.md side by side.
#include "ops/ladder/ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

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
  if (o.where() == Device::cuda) return {{10, 784}, {1, 65536}};
  return {{10, 1024}, {1, 4096}};  // at which the definition takes seconds
}

// Microseconds on an H200, estimated (+-40%) from each kernel's instructions and memory traffic, not measured.
std::string predicted(const LadderOptions& o, const std::string& rung, const Size& size) {
  static const std::map<std::string, std::pair<int, int>> estimates{
      {"1_thread", {200, 17000}}, {"2_block", {250, 20000}},      {"3_shared", {50, 4300}}, {"4_registers", {22, 1900}},
      {"5_chunks", {35, 2900}},   {"6_tensor_cores", {18, 1500}}, {"7_split", {9, 90}}};
  const auto found = estimates.find(rung);
  if (found == estimates.end() || o.heads != 8) return "-";
  const auto [short_sequences, long_sequence] = found->second;
  if (size.batch == 10 && size.length == 784) return std::to_string(short_sequences);
  if (size.batch == 1 && size.length == 65536) return std::to_string(long_sequence);
  return "-";
}

int bench_ladder(LadderOptions& o) {
  check<UsageError>(o.length || !o.batch, "--batch ", o.batch, " needs --length, too");
  const Device device = o.where();
  const std::vector<Rung> rungs = ladder(device);
  const std::vector<Size> all = sizes(o);
  fmt::print("y_i = sum_{{j<=i}} (q_i . k_j) v_j, forward only, H {}, E = M = 32\n", o.heads);
  std::vector<std::string> columns{"rung", "B", "L", "us", "times faster"};
  if (device == Device::cuda) columns.emplace_back("H200 us (predicted)");
  columns.emplace_back("idea");
  Table table(o, "ladder", columns, std::ssize(rungs) * std::ssize(all));
  for (const Size& size : all) {
    const Shape shape{size.batch, size.length, o.heads, 32};
    const Tensor x = uniform(shape, Key{1}, device), a = uniform(shape, Key{2}, device),
                 b = uniform(shape, Key{3}, device);
    const Tensor y(shape, device);
    double first = 0;
    for (const Rung& rung : rungs) {
      const auto call = [&] { climb(rung, y, x, a, b); };
      const double seconds =
          device == Device::cpu ? median_seconds(o, call) : cuda_seconds(o, 0.02, [&](int64_t) { call(); });
      if (first == 0) first = seconds;
      std::vector<std::string> cells{rung.name, std::to_string(size.batch), std::to_string(size.length),
                                     fmt::format("{:.1f}", 1e6 * seconds), fmt::format("{:.1f}", first / seconds)};
      if (device == Device::cuda) cells.push_back(predicted(o, rung.name, size));
      cells.push_back(rung.idea);
      table.row(cells);
    }
  }
  table.finish();
  return 0;
}

}  // namespace

void add_ladder(Subcommand bench, Command& chosen) {
  add_command<LadderOptions>(bench, chosen, "ladder",
                             "one product in several versions, from plain loops to the fastest: docs/ladder.md",
                             bench_ladder);
}

}  // namespace runnel
