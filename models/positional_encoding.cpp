#include "models/positional_encoding.h"

#include <algorithm>
#include <cmath>

namespace runnel {

double encoding_frequency(int64_t i, int64_t width) {
  return std::pow(10000.0, -static_cast<double>(2 * i) / static_cast<double>(width));
}

GridParts::GridParts(int64_t width, const Grid& grid)
    : column(grid.row ? width / 2 : width),
      row(width - column),
      channel(grid.row && grid.channels > 1 ? std::min<int64_t>(row, 2) : 0) {
  row -= channel;
}

Tensor positional_encoding(int64_t length, int64_t width, const Grid& grid, Device device) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(length * width));
  const auto append = [&](double x, int64_t numbers, double w = 0) {
    for (int64_t j = 0; j < numbers; ++j) {
      const double angle = x * (w != 0 ? w : encoding_frequency(j / 2, numbers));
      values.push_back(static_cast<float>(j % 2 ? std::cos(angle) : std::sin(angle)));
    }
  };
  const GridParts parts(width, grid);
  for (int64_t l = 0; l < length; ++l) {
    if (grid.row == 0) {
      append(static_cast<double>(l), width);
      continue;
    }
    append(static_cast<double>(l % grid.row) / static_cast<double>(grid.channels), parts.column);
    append(static_cast<double>(l / grid.row), parts.row);
    append(static_cast<double>(l % grid.channels), parts.channel, channel_angle);
  }
  return Tensor(Shape{length, width}, values, device);
}

}  // namespace runnel
