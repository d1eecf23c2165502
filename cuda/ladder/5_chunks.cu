// Rung 5: products of matrices. With the rows of x, a, b [32,32] being the positions of a chunk, and S the state before
// it,
//
//   y = mask(x a^T) b + x S,   S += a^T b,   where mask keeps the pairs j <= i.
//
// The rungs before walk along L. Here the 32 positions of a chunk are independent of each other but for the weights
// mask(x a^T), so a thread can compute 4 x 4 numbers of a product at a time: from 8 numbers of shared memory it makes
// 16 multiply-adds, where rung 4 needs one number for each. The price is twice the arithmetic: four products of 32 x 32
// x 32 per chunk instead of two, and half of x a^T is computed to be masked.
//
// As long as there is a block per head it
// does not pay: the arithmetic did not take the time, 4 x 4 numbers per thread leave two warps of the four, and
// nothing is fetched ahead. A profiler shows an occupancy below that of rung 4 and stalls on "long scoreboard". But now
// the work is of the kind that tensor cores do (rung 6) and that can start in the middle of a sequence (rung 7).
#include "cuda/launch.h"
#include "ops/ladder/kernels.h"

namespace runnel::cuda {
namespace {

constexpr int chunk = 32, threads = 64;
constexpr int stride = chunk + 4;  // of rows in shared memory: aligned for float4, fewer bank conflicts than 32
constexpr int tile = chunk * stride;

// sum += left^T right for this thread's 4 rows and 4 columns, from `row` and `column` on.
__device__ void add_product(float (&sum)[4][4], const float* left, const float* right, int row, int column) {
  for (int k = 0; k < chunk; ++k) {
    const float4 l = *reinterpret_cast<const float4*>(left + k * stride + row);
    const float4 r = *reinterpret_cast<const float4*>(right + k * stride + column);
    const float ls[4] = {l.x, l.y, l.z, l.w}, rs[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i][j] += ls[i] * rs[j];
  }
}

// Launch: a block of 64 threads per sequence and head.
// Owns:   a thread 4 x 4 numbers of every product: of the weights, of y, of S.
// Shared: a chunk of x^T, a^T, a and b, the transposed weights, and S.
__global__ void __launch_bounds__(threads)
    ladder_chunks_kernel(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ a,
                         const float* __restrict__ b, LadderSizes sizes) {
  const int thread = static_cast<int>(threadIdx.x), row = thread / 8 * 4, column = thread % 8 * 4;
  Shared shared;
  float* const xt = shared.take<float>(tile);       // [row of S, position]
  float* const at = shared.take<float>(tile);       // [row of S, position]
  float* const as = shared.take<float>(tile);       // [position, row of S]
  float* const bs = shared.take<float>(tile);       // [position, column of S]
  float* const weights = shared.take<float>(tile);  // [j, i]
  float* const s = shared.take<float>(tile);        // [row, column]

  float state[4][4] = {};
  for (int64_t begin = 0; begin < sizes.length; begin += chunk) {
#pragma unroll 8
    for (int k = 0; k < chunk; k += threads / 32) {
      const int i = k + thread / 32, n = thread % 32;
      const bool inside = begin + i < sizes.length;  // behind the end are zeros, which add nothing
      const int64_t from = sizes.at(blockIdx.x, begin + i) + n;
      xt[n * stride + i] = inside ? x[from] : 0;
      as[i * stride + n] = at[n * stride + i] = inside ? a[from] : 0;
      bs[i * stride + n] = inside ? b[from] : 0;
    }
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) s[(row + i) * stride + column + j] = state[i][j];
    __syncthreads();

    float weight[4][4] = {}, sum[4][4] = {};
    add_product(weight, xt, at, row, column);
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) weights[(column + j) * stride + row + i] = column + j <= row + i ? weight[i][j] : 0;
    add_product(sum, xt, s, row, column);
    __syncthreads();

    add_product(sum, weights, bs, row, column);
    add_product(state, as, bs, row, column);
    for (int i = 0; i < 4 && begin + row + i < sizes.length; ++i)
      *reinterpret_cast<float4*>(y + sizes.at(blockIdx.x, begin + row + i) + column) =
          make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
    __syncthreads();  // the next chunk overwrites what this one reads
  }
}

}  // namespace

void ladder_chunks(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  const Grid grid{dim3(static_cast<unsigned>(sizes.sequences())), dim3(threads),
                  SharedBytes().add<float>(6 * tile).bytes()};
  launch("ladder_chunks", ladder_chunks_kernel, grid, y, x, a, b, sizes);
}

}  // namespace runnel::cuda
