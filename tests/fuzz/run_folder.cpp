// config.json and metrics.csv of a run folder, as `runnel runs` and --resume read them. A zero byte parts them.
#include <algorithm>
#include <cstdio>

#include "apps/commands.h"
#include "apps/training/metrics.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  const size_t config = static_cast<size_t>(std::find(data, data + size, 0) - data);
  const size_t rest = std::min(config + 1, size);
  fuzz::write("config.json", data, config);
  const auto metrics = fuzz::write("metrics.csv", data + rest, size - rest);
  static const Command list_runs = [&] {
    const CommandLine line;
    add_commands(line.root());
    std::string folder = metrics.parent_path(), program = "runnel", runs = "runs";
    char* words[] = {program.data(), runs.data(), folder.data()};
    const Command chosen = line.parse(3, words);
    if (!std::freopen("/dev/null", "w", stdout)) std::abort();
    return chosen;
  }();
  fuzz::ends_well([] { list_runs(); });
  return fuzz::ends_well([&] { MetricsFile(metrics, {{"validation", Unit::nats}}, 1000); });
}
