// Rows written by an index in device memory, and rows that are padding.
#include <cstring>

#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/shapes.h"

namespace runnel {

void cpu::put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n) {
  std::memcpy(rows + index[0] * n, row, static_cast<size_t>(n) * sizeof(int32_t));
}

void cpu::shift(int32_t* y, const int32_t* x, int64_t by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + static_cast<int32_t>(by);
}

void cpu::zero_padding(float* y, const float* x, const int32_t* lengths, int64_t batch, int64_t length, int64_t row) {
  parallel_rows(batch * length, row, [=](int64_t i) {
    if (i % length < lengths[i / length])
      copy_numbers(y + i * row, x + i * row, row);
    else
      clear(y + i * row, row);
  });
}

void cpu::advance(int32_t* position, int64_t period) { position[0] = position[0] + 1 == period ? 0 : position[0] + 1; }

}  // namespace runnel
