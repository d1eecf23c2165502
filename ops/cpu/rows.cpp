// Rows read and written by an index in device memory, for sampling, without gradients; and the first positions of
// sequences, with gradients: taken, they get theirs and all others 0; replaced, the other way round.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/shapes.h"

namespace runnel {

void cpu::gather_rows(float* y, const float* x, const int32_t* rows, int64_t count, int64_t n) {
  parallel_rows(count, n, [=](int64_t i) { copy_numbers(y + i * n, x + rows[i] * n, n); });
}

void cpu::put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n) {
  std::memcpy(rows + index[0] * n, row, static_cast<size_t>(n) * sizeof(int32_t));
}

void cpu::shift(int32_t* y, const int32_t* x, int64_t by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + static_cast<int32_t>(by);
}

void cpu::advance(int32_t* position, int64_t period) { position[0] = position[0] + 1 == period ? 0 : position[0] + 1; }

void cpu::first_positions(float* y, const float* x, int64_t batch, int64_t n, int64_t row) {
  parallel_rows(batch, n, [=](int64_t b) { copy_numbers(y + b * n, x + b * row, n); });
}

void cpu::with_first_positions(float* y, const float* x, const float* first, int64_t batch, int64_t n, int64_t row) {
  const auto copy_or_clear = [](float* to, const float* from, int64_t count) {
    from ? copy_numbers(to, from, count) : clear(to, count);
  };
  parallel_rows(batch, row, [=](int64_t b) {
    copy_or_clear(y + b * row, first ? first + b * n : nullptr, n);
    copy_or_clear(y + b * row + n, x ? x + b * row + n : nullptr, row - n);
  });
}

}  // namespace runnel
