// Strided copies: transpose, slice, concat, broadcasting.
#include "cuda/launch.h"
#include "ops/kernels/shapes.h"

namespace runnel::cuda {
namespace {

// Launch: a thread per element. Owns: element (row, j) of y. Shared: none.
__global__ void strided_copy_kernel(float* y, const float* x, StridedLoop s) {
  for (int64_t i = first_element(); i < s.rows * s.n; i += element_step()) {
    const int64_t row = i / s.n, j = i % s.n;
    y[s.offset_a(row) + j * s.step_a] = x[s.offset_b(row) + j * s.step_b];
  }
}

}  // namespace

void strided_copy(float* y, const float* x, StridedLoop s) {
  if (s.rows * s.n == 0) return;  // y or x may point behind an empty tensor
  launch("strided_copy", strided_copy_kernel, over(s.rows * s.n), y, x, s);
}

}  // namespace runnel::cuda
