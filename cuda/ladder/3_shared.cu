// Rung 3: 32 positions at a time lie in shared memory, so that memory's latency is waited for once in 32 positions.
//
// The rungs before wait some 500 cycles for each position's numbers. Here a block first fetches 32 positions of x, a
// and b, many loads under way at once, and then walks through them at the latency of shared memory, some 30 cycles. The
// sum over the rows of S goes through shared memory, too: a thread keeps 8 rows of a column and adds up those, four
// warps are the 32 rows, and once per chunk their four parts are added. So the five shuffles are gone.
//
// What is left to waste: the store of each position's part. It ends a chain of dependent multiply-adds, and because the
// compiler must assume that it changes what is loaded next, the next position starts after it: some 75 cycles for 16
// multiply-adds. And while a chunk is fetched, nobody computes. A profiler shows stalls on "short scoreboard" in the
// inner loop and on "long scoreboard" before it.
#include "cuda/launch.h"
#include "ops/ladder/kernels.h"

namespace runnel::cuda {
namespace {

constexpr int chunk = 32, warps = 4, rows = ladder_width / warps;  // rows of S that a thread keeps
constexpr int tile = chunk * ladder_width;                         // numbers of x, a or b in a chunk

// Launch: a block of 4 warps per sequence and head.
// Owns:   a thread 8 rows of one column of S; in y, a warp every fourth position of a chunk.
// Shared: a chunk of x, a and b, and the contributions of each warp's rows to y.
__global__ void __launch_bounds__(warps * 32)
    ladder_shared_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ a,
                         const float* __restrict__ b, LadderSizes sizes) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Shared shared;
  float* const xs = shared.take<float>(tile);             // [chunk, row]
  float* const as = shared.take<float>(tile);             // [chunk, row]
  float* const bs = shared.take<float>(tile);             // [chunk, column]
  float* const parts = shared.take<float>(warps * tile);  // [warp, chunk, column]

  float s[rows] = {};  // S[warp * rows + (0..rows), lane]
  for (int64_t begin = 0; begin < sizes.length; begin += chunk) {
#pragma unroll
    for (int k = 0; k < chunk; k += warps) {
      const int i = k + warp;
      const bool inside = begin + i < sizes.length;  // behind the end are zeros, which add nothing
      const int64_t at = sizes.at(blockIdx.x, begin + i) + lane;
      xs[i * ladder_width + lane] = inside ? x[at] : 0;
      as[i * ladder_width + lane] = inside ? a[at] : 0;
      bs[i * ladder_width + lane] = inside ? b[at] : 0;
    }
    __syncthreads();

    for (int i = 0; i < chunk; ++i) {
      const float b_i = bs[i * ladder_width + lane];
      float sum = 0;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        s[r] += as[i * ladder_width + warp * rows + r] * b_i;
        sum += xs[i * ladder_width + warp * rows + r] * s[r];
      }
      parts[warp * tile + i * ladder_width + lane] = sum;
    }
    __syncthreads();

    for (int i = warp; i < chunk && begin + i < sizes.length; i += warps) {
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += parts[w * tile + i * ladder_width + lane];
      y[sizes.at(blockIdx.x, begin + i) + lane] = sum;
    }
  }
}

}  // namespace

void ladder_shared(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  const Grid grid{dim3(static_cast<unsigned>(sizes.sequences())), dim3(warps * 32),
                  SharedBytes().add<float>((3 + warps) * tile).bytes()};
  launch("ladder_shared", ladder_shared_kernel, grid, y, x, a, b, sizes);
}

}  // namespace runnel::cuda
