// Strided copies: transpose, slice, concat, broadcasting.
#include "cuda/map.h"
#include "ops/kernels/shapes.h"

namespace runnel::cuda {
namespace {

// Launch: over_fours(rows n). Owns: element (row, j) of y. Shared: none.
__global__ void strided_copy_kernel(float* y, const float* x, StridedLoop s) {
  each_place(s, [&](int64_t, int64_t at_y, int64_t at_x) { y[at_y] = x[at_x]; });
}

}  // namespace

void strided_copy(float* y, const float* x, StridedLoop s) {
  if (s.rows * s.n == 0) return;  // y or x may point behind an empty tensor
  launch("strided_copy", strided_copy_kernel, over_fours(s.rows * s.n), y, x, s);
}

}  // namespace runnel::cuda
