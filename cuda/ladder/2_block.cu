// Rung 2: a thread for each number of the state, so that a head is 32 warps instead of one: 32 times the parallelism.
//
// The rung before leaves the machine empty. Here a lane is a row of S and a warp a column: a_i b_i^T is one
// multiply-add per thread, and a column of x_i^T S is a sum over the lanes of a warp.
//
// But the parallelism is of the wrong kind. All warps of a block wait for the same x_i, a_i and b_i, position by
// position, so the latency of memory is as bare as before; and each warp adds five chained shuffles to it, for two
// multiply-adds per thread. A profiler shows more active warps, the same stalls on "long scoreboard", and new ones on
// "short scoreboard", the shuffles. 32 times the threads are three times as fast: the part to make parallel is the
// waiting.
#include "cuda/launch.h"
#include "ops/ladder/kernels.h"

namespace runnel::cuda {
namespace {

// Launch: a block of 32 warps per sequence and head.
// Owns:   a thread one number of S, a warp one column of S and of y.
// Shared: nothing.
__global__ void __launch_bounds__(ladder_width * 32)
    ladder_block_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ a,
                        const float* __restrict__ b, LadderSizes sizes) {
  const int row = static_cast<int>(threadIdx.x) % 32, column = static_cast<int>(threadIdx.x) / 32;
  float s = 0;
  for (int64_t i = 0; i < sizes.length; ++i) {
    const int64_t at = sizes.at(blockIdx.x, i);
    s += a[at + row] * b[at + column];
    const float sum = warp_sum(x[at + row] * s);
    if (row == 0) y[at + column] = sum;
  }
}

}  // namespace

void ladder_block(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  const Grid grid{dim3(static_cast<unsigned>(sizes.sequences())), dim3(ladder_width * 32)};
  launch("ladder_block", ladder_block_kernel, grid, y, x, a, b, sizes);
}

}  // namespace runnel::cuda
