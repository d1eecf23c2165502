// Rows put by an index that lies on the device, and rows that are padding.
#include "cuda/launch.h"
#include "ops/kernels/shapes.h"

namespace runnel::cuda {
namespace {

// Launch: a thread per element of the row. Owns: rows[index,j].
__global__ void put_row_kernel(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n) {
  for (int64_t j = first_element(); j < n; j += element_step()) rows[index[0] * n + j] = row[j];
}

// Launch: a thread per number. Owns: y[i].
__global__ void shift_kernel(int32_t* y, const int32_t* x, int64_t by, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) y[i] = x[i] + static_cast<int32_t>(by);
}

// Launch: a thread per number. Owns: y[i].
__global__ void zero_padding_kernel(float* y, const float* x, const int32_t* lengths, int64_t length, int64_t row,
                                    int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step())
    y[i] = i / row % length < lengths[i / row / length] ? x[i] : 0;
}

// Launch: one thread that counts, in a warp.
__global__ void advance_kernel(int32_t* position, int64_t period) {
  if (threadIdx.x == 0) position[0] = position[0] + 1 == period ? 0 : position[0] + 1;
}

}  // namespace

void put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n) {
  launch("put_row", put_row_kernel, over(n), rows, row, index, n);
}

void shift(int32_t* y, const int32_t* x, int64_t by, int64_t n) { launch("shift", shift_kernel, over(n), y, x, by, n); }

void zero_padding(float* y, const float* x, const int32_t* lengths, int64_t batch, int64_t length, int64_t row) {
  const int64_t n = batch * length * row;
  launch("zero_padding", zero_padding_kernel, over(n), y, x, lengths, length, row, n);
}

void advance(int32_t* position, int64_t period) {
  launch("advance", advance_kernel, Grid{dim3(1), dim3(32)}, position, period);
}

}  // namespace runnel::cuda
