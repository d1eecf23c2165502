// Rung 4: the same walk without the two waits of rung 3. Eight positions' sums stay in registers and are stored
// together, so that no store stands between a position and the next, and the compiler can overlap the eight. And the
// next chunk is on its way from global to shared memory, into a second set of arrays, while this one is walked through:
// cp.async copies without passing through registers, so nobody waits before the chunk is needed.
//
// What is left to waste: the walk itself. The positions of a chunk still follow each other, each thread needs 17
// numbers from shared memory for 16 multiply-adds, and tensor cores multiply matrices, not vectors. A profiler shows
// the multiply-add pipe at a few percent, for 80 blocks of four warps are two thirds of a warp for each of the 528
// schedulers.
#include "cuda/launch.h"
#include "ops/ladder/kernels.h"

namespace runnel::cuda {
namespace {

constexpr int chunk = 32, warps = 4, rows = ladder_width / warps;  // rows of S that a thread keeps
constexpr int together = 8;                                        // positions whose sums wait in registers
constexpr int tile = chunk * ladder_width;                         // numbers of x, a or b in a chunk

// Launch: a block of 4 warps per sequence and head.
// Owns:   a thread 8 rows of one column of S; in y, a warp every fourth position of a chunk.
// Shared: two chunks of x, a and b, and the contributions of each warp's rows to y.
__global__ void __launch_bounds__(warps * 32)
    ladder_registers_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ a,
                            const float* __restrict__ b, LadderSizes sizes) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  Shared shared;
  float* const chunks = shared.take<float>(2 * 3 * tile);  // [2, (x, a, b), chunk, row or column]
  float* const parts = shared.take<float>(warps * tile);   // [warp, chunk, column]

  const auto fetch = [=](int64_t begin) {
    float* const to = chunks + begin / chunk % 2 * (3 * tile);
    for (int i = 4 * thread; i < tile; i += 4 * warps * 32) {  // four numbers, 16 bytes, at a time
      const int64_t position = begin + i / ladder_width;
      const int64_t at = sizes.at(blockIdx.x, position) + i % ladder_width;
      const float* const from[] = {x + at, a + at, b + at};
      for (int n = 0; n < 3; ++n) {
        float* const four = to + n * tile + i;
        if (position < sizes.length)
          copy16_async(four, from[n]);
        else
          *reinterpret_cast<float4*>(four) = make_float4(0, 0, 0, 0);
      }
    }
    copy_async_commit();
  };

  float s[rows] = {};  // S[warp * rows + (0..rows), lane]
  fetch(0);
  for (int64_t begin = 0; begin < sizes.length; begin += chunk) {
    copy_async_wait<0>();
    __syncthreads();  // this chunk has arrived, and everybody is done with the one before
    if (begin + chunk < sizes.length) fetch(begin + chunk);

    const float* const xs = chunks + begin / chunk % 2 * (3 * tile) + warp * rows;
    const float* const as = xs + tile;
    const float* const bs = as + tile - warp * rows;
    for (int first = 0; first < chunk; first += together) {
      float sums[together] = {};
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const int at = (first + k) * ladder_width;
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          s[r] += as[at + r] * bs[at + lane];
          sums[k] += xs[at + r] * s[r];
        }
      }
#pragma unroll
      for (int k = 0; k < together; ++k) parts[warp * tile + (first + k) * ladder_width + lane] = sums[k];
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

void ladder_registers(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  const Grid grid{dim3(static_cast<unsigned>(sizes.sequences())), dim3(warps * 32),
                  SharedBytes().add<float>((2 * 3 + warps) * tile).bytes()};
  launch("ladder_registers", ladder_registers_kernel, grid, y, x, a, b, sizes);
}

}  // namespace runnel::cuda
