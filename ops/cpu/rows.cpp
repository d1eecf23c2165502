// Rows written by an index in device memory, for sampling.
#include <cstring>

#include "ops/kernels/shapes.h"

namespace runnel {

void cpu::put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n) {
  std::memcpy(rows + index[0] * n, row, static_cast<size_t>(n) * sizeof(int32_t));
}

void cpu::shift(int32_t* y, const int32_t* x, int64_t by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + static_cast<int32_t>(by);
}

void cpu::advance(int32_t* position, int64_t period) { position[0] = position[0] + 1 == period ? 0 : position[0] + 1; }

}  // namespace runnel
