// runnel bench reading: images/s from files, and the time of a batch.
#include <fmt/format.h>

#include "apps/bench/bench.h"
#include "datasets/cifar10.h"
#include "datasets/files.h"
#include "datasets/mnist.h"
#include "engine/check.h"

namespace runnel {
namespace {

struct ReadingOptions : BenchOptions {
  std::string data;

  Settings list() override {
    return extended(BenchOptions::list(),
                    {{"data", &data, {}, "folder with the data sets; default: $RUNNEL_DATA or ./data"}});
  }
};

// Files are in the system's cache: it is decompression that is timed.
int bench_reading(ReadingOptions& o) {
  const std::filesystem::path directory = data_directory(o.data);
  const ImageSet mnist = load_mnist(directory, Split::train);
  Table table(o, "reading", {"what", "images", "ms", "images/s"}, 4);
  const auto row = [&](const std::string& what, int64_t images, double seconds) {
    table.row({what, std::to_string(images), fmt::format("{:.3f}", 1e3 * seconds),
               fmt::format("{:.0f}", static_cast<double>(images) / seconds)});
  };
  const auto measure = [&](const ImageSet& set, auto load) {
    row(set.name, set.count, median_seconds(o, [&] { load(directory, Split::train); }));
    int64_t step = 0;
    row("a batch of it", 10, median_seconds(o, [&] { byte_batch(set, 10 * step++, 10, o.chosen_device()); }));
  };
  measure(mnist, load_mnist);
  try {
    measure(load_cifar10(directory, Split::train), load_cifar10);
  } catch (const Error& error) {
    fmt::print("left out: {}\n", error.what());
  }
  table.finish();
  return 0;
}

}  // namespace

void add_reading(Subcommand bench, Command& chosen) {
  add_command<ReadingOptions>(bench, chosen, "reading", "images/s from files, and the time of a batch", bench_reading);
}

}  // namespace runnel
