// How the benchmarks measure, and the table that each prints and leaves as CSV and PNG.
#pragma once
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/subcommand.h"
#include "apps/cli/terminal.h"
#include "apps/plots/pictures.h"
#include "models/autoregressive.h"

namespace runnel {

struct Timing : RuntimeOptions {
  int64_t runs = 5;

  Settings list() override { return extended(RuntimeOptions::list(), {runs_flag(), json_flag()}); }
  Setting runs_flag() {
    return {"runs", &runs, in_range(1, 1000), "timed runs, for their median; one if it takes longer than 5 s"};
  }
};

struct BenchOptions : Timing {
  std::string out = "runs/bench";

  Settings list() override {
    return extended(Timing::list(), {{"out", &out, {}, "folder for the tables (CSV) and plots (PNG)"}});
  }
};

void add_attention(Subcommand bench);
void add_training_speed(Subcommand bench);
void add_generation(Subcommand bench);
void add_convergence(Subcommand bench);
void add_recall_benchmark(Subcommand bench);
void add_kernels(Subcommand bench);
void add_ladder(Subcommand bench);

// The paper's model of "mnist" or "cifar10" images (section 4.2), whose lsh has 64 buckets and 27 or 83 chunks.
AutoregressiveConfig paper_image_model(const std::string& images);

// Tokens per second of a run: the median over the rows of its metrics.csv.
double trained_rate(const std::filesystem::path& run);

// The values of a flag that is a list, separated by commas. Throws UsageError for a word that is not known or a number
// out of range. An empty list is all words that are known.
std::vector<std::string> chosen_words(const std::string& flag, const std::string& list, const Choices& known);
std::vector<int64_t> chosen_numbers(const std::string& flag, const std::string& list, const Allowed& allowed);

// Numbers in [-1, 1).
Tensor uniform(Shape shape, Key key, Device device);

// Median seconds of --runs calls after a warm-up, since new memory is slow; one call if it takes above 5 s, and the
// warm-up itself if that takes above 20 s.
double median_seconds(const Timing& options, const std::function<void()>& call);

double median(std::vector<double> values);

// Median seconds of a call on CUDA, by the GPU's clock, for calls that are shorter than a launch: call(0), call(1), ...
// are captured as a graph, as many as take `together` seconds, but at most 50, and a replay is timed that follows right
// after another. Before, all of them are called once: then they may allocate.
double cuda_seconds(const Timing& options, double together, const std::function<void(int64_t)>& call);

// Side of the square matrices whose product measures a device's peak: large enough to fill it.
int64_t product_size(Device device);
double product_rate(const Timing& options);  // operations per second of their product: in float32, on CUDA --precision
// Processor or GPU, threads, precision and the product_rate of now: the ceiling for all that is measured.
std::string hardware(const Timing& options, double rate);

// Rows of text under named columns. Every row is printed when it is known and stands in the CSV file from then on,
// below a line that names the machine.
class Table {
 public:
  // `most`: rows that it may get, for the share done.
  Table(const BenchOptions& options, const std::string& name, std::vector<std::string> columns, int64_t most);
  void row(const std::vector<std::string>& cells);
  void note(const std::string& text);  // a line between rows that is not in the file
  void finish() const;                 // prints the CSV file's name, or with --json all rows
  std::filesystem::path file(const std::string& extension) const { return stem_.string() + extension; }
  std::string source() const { return data_file(file(".csv")); }  // in gnuplot's commands

 private:
  std::filesystem::path stem_;
  std::vector<std::string> columns_;
  int64_t rows_ = 0, most_;
  Progress progress_{"measured row"};
  std::string csv_;
  bool json_;
  nlohmann::json object_;
};

}  // namespace runnel
