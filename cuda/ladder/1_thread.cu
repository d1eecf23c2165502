// Rung 1: Algorithm 1, a thread for each column of the state. S_i = S_{i-1} + a_i b_i^T and y_i = x_i^T S_i treat the
// columns of S alike and apart: a thread that keeps one of them needs all of x_i and a_i and one number of b_i, and
// gives one number of y_i. A warp is a head.
//
// It wastes nearly the whole machine: 80 heads are 80 warps, where an H200 has room for 8,448, and a warp that waits
// has no other to take its place. It waits at each position, for x_i, a_i and b_i to come from memory, some 500 cycles
// for 64 multiply-adds. A profiler shows an occupancy below 2% and warps stalled on "long scoreboard".
#include "cuda/launch.h"
#include "ops/ladder/kernels.h"

namespace runnel::cuda {
namespace {

// Launch: a block of one warp per sequence and head.
// Owns:   a thread one column of S, in registers, and of y.
// Shared: nothing.
__global__ void __launch_bounds__(32)
    ladder_thread_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ a,
                         const float* __restrict__ b, LadderSizes sizes) {
  const int column = static_cast<int>(threadIdx.x);
  float s[ladder_width] = {};
  for (int64_t i = 0; i < sizes.length; ++i) {
    const int64_t at = sizes.at(blockIdx.x, i);
    const float b_i = b[at + column];
    float sum = 0;
#pragma unroll
    for (int r = 0; r < ladder_width; ++r) {
      s[r] += a[at + r] * b_i;
      sum += x[at + r] * s[r];
    }
    y[at + column] = sum;
  }
}

}  // namespace

void ladder_thread(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  const Grid grid{dim3(static_cast<unsigned>(sizes.sequences())), dim3(32)};
  launch("ladder_thread", ladder_thread_kernel, grid, y, x, a, b, sizes);
}

}  // namespace runnel::cuda
