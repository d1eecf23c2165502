// Rows taken and put by an index that lies on the device, and the first positions of sequences: see ops/cpu/rows.cpp.
#include "cuda/launch.h"
#include "ops/kernels/shapes.h"

namespace runnel::cuda {
namespace {

// Launch: a thread per element. Owns: y[i,j].
__global__ void gather_rows_kernel(float* y, const float* x, const int32_t* rows, int64_t count, int64_t n) {
  for (int64_t i = first_element(); i < count * n; i += element_step()) y[i] = x[rows[i / n] * n + i % n];
}

// Launch: a thread per element of the row. Owns: rows[index,j].
__global__ void put_row_kernel(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n) {
  for (int64_t j = first_element(); j < n; j += element_step()) rows[index[0] * n + j] = row[j];
}

// Launch: a thread per number. Owns: y[i].
__global__ void shift_kernel(int32_t* y, const int32_t* x, int64_t by, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) y[i] = x[i] + static_cast<int32_t>(by);
}

// Launch: one thread that counts, in a warp.
__global__ void advance_kernel(int32_t* position, int64_t period) {
  if (threadIdx.x == 0) position[0] = position[0] + 1 == period ? 0 : position[0] + 1;
}

// Launch: a thread per element. Owns: y[b,i].
__global__ void first_positions_kernel(float* y, const float* x, int64_t batch, int64_t n, int64_t row) {
  for (int64_t i = first_element(); i < batch * n; i += element_step()) y[i] = x[i / n * row + i % n];
}

// Launch: a thread per element. Owns: y[b,i].
__global__ void with_first_positions_kernel(float* y, const float* x, const float* first, int64_t batch, int64_t n,
                                            int64_t row) {
  for (int64_t i = first_element(); i < batch * row; i += element_step()) {
    const int64_t b = i / row, at = i % row;
    y[i] = at < n ? (first ? first[b * n + at] : 0) : (x ? x[i] : 0);
  }
}

}  // namespace

void gather_rows(float* y, const float* x, const int32_t* rows, int64_t count, int64_t n) {
  launch("gather_rows", gather_rows_kernel, over(count * n), y, x, rows, count, n);
}

void put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n) {
  launch("put_row", put_row_kernel, over(n), rows, row, index, n);
}

void shift(int32_t* y, const int32_t* x, int64_t by, int64_t n) { launch("shift", shift_kernel, over(n), y, x, by, n); }

void advance(int32_t* position, int64_t period) {
  launch("advance", advance_kernel, Grid{dim3(1), dim3(32)}, position, period);
}

void first_positions(float* y, const float* x, int64_t batch, int64_t n, int64_t row) {
  launch("first_positions", first_positions_kernel, over(batch * n), y, x, batch, n, row);
}

void with_first_positions(float* y, const float* x, const float* first, int64_t batch, int64_t n, int64_t row) {
  launch("with_first_positions", with_first_positions_kernel, over(batch * row), y, x, first, batch, n, row);
}

}  // namespace runnel::cuda
