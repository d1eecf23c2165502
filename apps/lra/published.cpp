#include "apps/lra/published.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <vector>

namespace runnel {

extern const char* const published_csv;  // CMake writes it

std::optional<double> published(const std::string& attention, const std::string& column) {
  std::istringstream rows(published_csv);
  std::vector<std::string> names, cells;
  for (std::string row, cell; std::getline(rows, row);) {
    cells.clear();
    for (std::istringstream line(row); std::getline(line, cell, ',');) cells.push_back(cell);
    if (names.empty()) names = cells;
    if (cells[0] != attention) continue;
    const auto at = static_cast<size_t>(std::ranges::find(names, column) - names.begin());
    if (at < cells.size() && !cells[at].empty()) return std::stod(cells[at]);
  }
  return {};
}

}  // namespace runnel
