// metrics.csv: a row per --log-every updates.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "apps/training/task.h"
#include "datasets/files.h"

namespace runnel {

class MetricsFile {
 public:
  // Keeps the rows up to and including `step` and cuts the rows that a killed run wrote after its last checkpoint.
  // Throws Error that names the file if it cannot be written.
  MetricsFile(std::filesystem::path path, const std::vector<Metric>& metrics, int64_t step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  double seconds() const { return seconds_; }  // of the last row kept: the time the run took so far

  // `values`: those of the metrics, or none.
  void add(int64_t step, double loss, const std::vector<double>& values, double lr, double rate, double seconds);
  void write();  // appends the rows that were added; if that fails, they are kept for the next time

 private:
  void require(bool holds) const;

  std::filesystem::path path_;
  std::vector<Metric> metrics_;
  int file_ = -1;
  std::string pending_;
  double seconds_ = 0;
};

// Its rows, one after another. Throws Error that names the file if it is not there or has no header.
class MetricsRows {
 public:
  explicit MetricsRows(const std::filesystem::path& run_folder);

  const std::vector<std::string>& names() const { return names_; }  // of the columns
  bool next();                                                      // the next row that is whole; false at the end
  // Of that row: empty where there is none.
  const std::string& text(size_t column) const { return cells_[column]; }
  double operator[](const std::string& name) const;  // NaN where there is none

 private:
  bool read(std::vector<std::string>& cells);

  LineFile file_;
  std::vector<std::string> names_, cells_;
};

std::string grouped(double n);                    // 3163787 -> 3,163,787
std::string bytes_text(double bytes);             // 12.3 MB, 1.20 GB
const char* name_of(Unit unit);                   // nats, bits/dim, %
std::string value_text(double value, Unit unit);  // 0.01234 nats, 1.2345 bits/dim, 99.32%

}  // namespace runnel
