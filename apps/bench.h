// What the benchmarks share: how they measure, and the table that each prints and leaves as CSV and PNG.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "apps/options.h"
#include "apps/pictures.h"
#include "models/transformer.h"

namespace runnel {

struct Timing : Machine {
  int64_t runs = 5;

  template <class Each>
  void each(Each&& option) {
    Machine::each(option);
    option("runs", runs, in_range(1, 1000), "timed runs, of which the median counts; one if it takes longer than 2 s");
  }
};

struct BenchOptions : Timing {
  std::string out = "runs/bench";

  template <class Each>
  void each(Each&& option) {
    Timing::each(option);
    option("out", out, Allowed(), "the folder for the tables (CSV) and plots (PNG)");
  }
};

void add_generation(Word bench, Command& chosen);
void add_convergence(Word bench, Command& chosen);
void add_kernels(Word bench, Command& chosen);

// A way of the paper's to attend, and to sample.
struct Method {
  std::string name;  // as in the paper's tables
  Attention attention;
  Lsh lsh = {};
};

// The paper's model of "mnist" or "cifar10" images (section 4.2), whose lsh has 64 buckets and 27 or 83 chunks.
TransformerConfig paper_image_model(const std::string& images);

// Median seconds of --runs calls after one that warms up; that one's if it takes more than 2 s.
double median_seconds(const Timing& options, const std::function<void()>& call);

double product_rate(const Timing& options);  // operations per second of a product of 2048 x 2048 in float32
// Processor or GPU, threads, precision and the product_rate of now: the ceiling for all that is measured.
std::string hardware(const Timing& options, double rate);

// Rows of text under named columns. Every row is printed when it is known and stands in the CSV file from then on,
// below a line that says what was measured on.
class Table {
 public:
  Table(const BenchOptions& options, const std::string& name, std::vector<std::string> columns);
  void row(const std::vector<std::string>& cells);
  std::filesystem::path file(const std::string& extension) const { return stem_.string() + extension; }
  std::string source() const { return quoted(file(".csv").string()); }  // in gnuplot's commands

 private:
  std::filesystem::path stem_;
  std::vector<std::string> columns_;
  std::string csv_;
};

}  // namespace runnel
