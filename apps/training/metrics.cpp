#include "apps/training/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numbers>
#include <sstream>

#include "engine/check.h"
#include "engine/file.h"

namespace runnel {
namespace {

constexpr uint64_t max_bytes = 1 << 30;

bool is_in_nats(Unit unit) { return unit != Unit::percent; }

std::string header(const std::vector<Metric>& metrics) {
  std::string text = "step,loss,loss_bits";
  for (const Metric& metric : metrics) {
    text += "," + metric.name;
    if (is_in_nats(metric.unit)) text += "," + metric.name + "_bits";
  }
  return text + ",lr,tokens_per_second,seconds";
}

constexpr size_t max_columns = 1000;

std::string nats_and_bits(double nats) { return fmt::format("{:.6f},{:.6f}", nats, nats / std::numbers::ln2); }

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path, const std::vector<Metric>& metrics, int64_t step)
    : path_(std::move(path)), metrics_(metrics) {
  std::string kept = header(metrics) + "\n";
  std::istringstream old(step > 0 && std::filesystem::exists(path_) ? read_file(path_, max_bytes) : "");
  for (std::string row; std::getline(old, row) && !old.eof();) {  // a row without its newline was cut
    char* end;
    const long long row_step = std::strtoll(row.c_str(), &end, 10);
    if (*end != ',' || row_step > step) continue;
    kept += row + "\n";
    const double seconds = std::strtod(row.c_str() + row.rfind(',') + 1, nullptr);
    if (seconds >= 0 && std::isfinite(seconds)) seconds_ = seconds;
  }
  write_atomically(path_, {kept});
  file_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
  require(file_ >= 0);
}

MetricsFile::~MetricsFile() { close(file_); }

void MetricsFile::add(int64_t step, double loss, const std::vector<double>& values, double lr, double rate,
                      double seconds) {
  std::string row = fmt::format("{},{}", step, nats_and_bits(loss));
  for (size_t i = 0; i < metrics_.size(); ++i) {
    const bool in_nats = is_in_nats(metrics_[i].unit);
    row += ',';
    if (values.empty())
      row += in_nats ? "," : "";
    else
      row += in_nats ? nats_and_bits(values[i]) : fmt::format("{:.6f}", values[i]);
  }
  pending_ += row + fmt::format(",{:.4g},{:.0f},{:.3f}\n", lr, rate, seconds);
}

void MetricsFile::write() {
  while (!pending_.empty()) {
    const ssize_t written = ::write(file_, pending_.data(), pending_.size());
    if (written < 0 && errno == EINTR) continue;
    require(written >= 0);
    pending_.erase(0, static_cast<size_t>(written));
  }
}

void MetricsFile::require(bool holds) const {
  check(holds, "cannot write ", path_.string(), ": ", std::strerror(errno));
}

MetricsRows::MetricsRows(const std::filesystem::path& run_folder) : file_(run_folder / "metrics.csv") {
  check(read(names_) && names_.size() > 3 && names_[0] == "step" && names_[1] == "loss",
        (run_folder / "metrics.csv").string(), " has no header");
}

bool MetricsRows::read(std::vector<std::string>& cells) {
  std::string row;
  if (!file_.next(row)) return false;
  if (static_cast<size_t>(std::ranges::count(row, ',')) >= max_columns)
    file_.wrong("more than " + std::to_string(max_columns) + " columns");
  cells.assign(1, "");
  for (const char c : row)
    if (c == ',')
      cells.emplace_back();
    else
      cells.back() += c;
  return true;
}

bool MetricsRows::next() {
  while (read(cells_))
    if (cells_.size() == names_.size()) return true;  // else its end is not written yet
  return false;
}

double MetricsRows::operator[](const std::string& name) const {
  const auto column = static_cast<size_t>(std::ranges::find(names_, name) - names_.begin());
  return column == names_.size() || cells_[column].empty() ? NAN : std::strtod(cells_[column].c_str(), nullptr);
}

std::string grouped(double n) {
  std::string digits = fmt::format("{:.0f}", n);
  for (size_t i = digits.size(); i > 3;) digits.insert(i -= 3, 1, ',');
  return digits;
}

std::string bytes_text(double bytes) {
  return bytes < 1e9 ? fmt::format("{:.1f} MB", bytes / 1e6) : fmt::format("{:.2f} GB", bytes / 1e9);
}

const char* name_of(Unit unit) {
  switch (unit) {
    case Unit::nats:
      return "nats";
    case Unit::bits_per_dim:
      return "bits/dim";
    case Unit::bits_per_byte:
      return "bits/byte";
    case Unit::percent:
      break;
  }
  return "%";
}

std::string value_text(double value, Unit unit) {
  if (unit == Unit::percent) return fmt::format("{:.2f}%", value);
  if (unit == Unit::nats) return fmt::format("{:.5f} nats", value);
  return fmt::format("{:.4f} {}", value / std::numbers::ln2, name_of(unit));
}

}  // namespace runnel
