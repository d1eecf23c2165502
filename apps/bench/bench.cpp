// How the benchmarks measure, and the table that each prints and leaves as CSV and PNG. Every number is the median of
// several runs in this process; machines are noisy, so compare within one run.
#include "apps/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>

#include "apps/package.h"
#include "apps/training/metrics.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/replay.h"
#include "engine/timing.h"
#include "models/settings_text.h"
#include "ops/linear.h"

namespace runnel {

double median_seconds(const Timing& o, const std::function<void()>& call) {
  const auto once = [&] {
    const auto start = std::chrono::steady_clock::now();
    call();
    synchronize(o.chosen_device());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double first = once();
  if (first > 20) return first;
  std::vector<double> seconds(first > 5 ? 1 : static_cast<size_t>(o.runs));
  std::generate(seconds.begin(), seconds.end(), once);
  return median(seconds);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double cuda_seconds(const Timing& o, double together, const std::function<void(int64_t)>& call) {
  call(0);  // libraries initialise themselves
  const double once = device_seconds(Device::cuda, [&] { call(0); });
  const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(together / once), 1, 50);
  Replay replay(Device::cuda, [&] {
    for (int64_t i = 0; i < calls; ++i) call(i);
  });
  replay.run();  // is not captured, so `call` may still allocate
  std::vector<double> seconds;
  for (int64_t run = 0; run < o.runs; ++run) {
    replay.run();
    seconds.push_back(device_seconds(Device::cuda, [&] { replay.run(); }) / static_cast<double>(calls));
  }
  return median(seconds);
}

double trained_rate(const std::filesystem::path& run) {
  std::vector<double> rates;
  for (MetricsRows rows(run); rows.next();) rates.push_back(rows["tokens_per_second"]);
  return rates.empty() ? 0 : median(rates);
}

namespace {

template <class T>
std::vector<T> values_in(const std::string& flag, const std::string& list, const Allowed& allowed) {
  std::vector<T> values;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const std::string problem = set_value({flag, &values.emplace_back(), allowed, ""}, word);
    check<UsageError>(problem.empty(), "--", flag, ": ", problem);
  }
  return values;
}

}  // namespace

std::vector<std::string> chosen_words(const std::string& flag, const std::string& list, const Choices& known) {
  return list.empty() ? known : values_in<std::string>(flag, list, known);
}

std::vector<int64_t> chosen_numbers(const std::string& flag, const std::string& list, const Allowed& allowed) {
  return values_in<int64_t>(flag, list, allowed);
}

Tensor uniform(Shape shape, Key key, Device device) {
  std::vector<float> values(static_cast<size_t>(shape.size()));
#pragma omp parallel for
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * key.uniform(i) - 1;
  return Tensor(shape, values, device);
}

int64_t product_size(Device device) { return device == Device::cpu ? 2048 : cuda_is_emulated() ? 64 : 8192; }

double product_rate(const Timing& o) {
  const int64_t n = product_size(o.chosen_device());
  const Tensor a = uniform(Shape{n, n}, Key{1}, o.chosen_device()), b = uniform(Shape{n, n}, Key{2}, o.chosen_device());
  return 2 * std::pow(static_cast<double>(n), 3) / median_seconds(o, [&] { matmul(a, b); });
}

std::string hardware(const Timing& o, double rate) {
  const int64_t n = product_size(o.chosen_device());
  return fmt::format("{}, {} threads, {}; products of {} x {} in {}: {:.0f} GFLOP/s", model_name(o.chosen_device()),
                     o.threads, o.precision, n, n, o.chosen_device() == Device::cpu ? "float32" : o.precision,
                     rate / 1e9);
}

namespace {

template <class Format>
std::string joined(const std::vector<std::string>& cells, const char* between, Format format) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i) line += between;
    line += format(i);
  }
  return line;
}

}  // namespace

Table::Table(const BenchOptions& o, const std::string& name, std::vector<std::string> columns, int64_t most)
    : stem_(std::filesystem::path(o.out) / name), columns_(std::move(columns)), most_(most), json_(o.json) {
  std::error_code error;
  std::filesystem::create_directories(o.out, error);
  check(!error, "--out ", o.out, ": cannot be made: ", error.message());
  check_replaceable(file(".csv"), "a table of this program", "# ");
  const std::string machine = hardware(o, product_rate(o));
  fmt::print("{}\n", machine);
  csv_ = "# " + machine + "\n";
  row(columns_);
  object_ = {{"bench", name}, {"machine", machine}, {"csv", file(".csv").string()}, {"rows", nlohmann::json::array()}};
}

void Table::finish() const {
  if (json_)
    print_json(object_);
  else
    fmt::print("{}\n", file(".csv").string());
}

void Table::row(const std::vector<std::string>& cells) {
  note(joined(cells, "  ", [&](size_t i) {
    const size_t width = std::max<size_t>(columns_[i].size(), i ? 8 : 16);
    return i ? fmt::format("{:>{}}", cells[i], width) : fmt::format("{:<{}}", cells[i], width);
  }));
  csv_ += joined(cells, ",", [&](size_t i) { return cells[i]; }) + "\n";
  write_atomically(file(".csv"), {{csv_.begin(), csv_.end()}});
  if (!object_.contains("rows")) return;  // the columns' names
  nlohmann::json values;
  for (size_t i = 0; i < cells.size(); ++i) {
    const nlohmann::json number = nlohmann::json::parse(cells[i], nullptr, false);
    values[columns_[i]] = number.is_number() ? number : nlohmann::json(cells[i]);
  }
  object_["rows"].push_back(values);
  progress_(++rows_, most_);
}

void Table::note(const std::string& text) {
  progress_.erase();
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void add_bench(Subcommand program) {
  program.add("bench", "speed and memory on this machine: the paper's figures and tables", [](Subcommand bench) {
    for (const auto add : {add_attention, add_training_speed, add_generation, add_convergence, add_recall_benchmark,
                           add_kernels, add_ladder})
      add(bench);
    for (const Package* package : packages())
      if (package->add_benchmarks) package->add_benchmarks(bench);
  });
}

}  // namespace runnel
