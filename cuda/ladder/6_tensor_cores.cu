// Rung 6: the products of rung 5 on the tensor cores. One instruction of a warp, mma, multiplies 16 x 8 by 8 x 8
// numbers: 1,024 multiply-adds, where 32 threads make 32. The operands are rounded to TF32, 10 bits of mantissa, so the
// result is right to about 1 in 1,000; the sums, and S above all, are float32.
//
// Rung 5 spends its time on issuing multiply-adds and loads, with two warps. Here four warps have 16 x 16 numbers of
// each product, two tiles of 16 x 8, and a product of 32 x 32 x 32 is eight mma per warp.
//
// What is left to waste: the tensor cores themselves, which are busy for a few percent of the time. The operands reach
// them as single numbers, four loads for a left operand and four for two right ones; a block waits for its chunk, then
// computes, with three barriers; and there are 80 blocks for 132 multiprocessors. A profiler shows the tensor pipe
// below 5% and less than one block per multiprocessor.
#include "cuda/launch.h"
#include "ops/ladder/kernels.h"

namespace runnel::cuda {
namespace {

constexpr int chunk = 32, threads = 128;
// From row to row in shared memory, so that the lanes of a warp load from 32 different banks, except of a^T.
constexpr int left_stride = 36, right_stride = 40;

using Tiles = float[2][4];  // a warp's 16 x 16 numbers as mma holds them: tiles of 16 x 8, four numbers in each lane

// f(row, column, number) for each of this lane's numbers.
template <class F>
__device__ void each(Tiles& tiles, F f) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f(warp / 2 * 16 + lane / 4 + i / 2 * 8, warp % 2 * 16 + n * 8 + lane % 4 * 2 + i % 2, tiles[n][i]);
}

// sum += left right, where left(i,k) is left[i * i_step + k * k_step] and right(k,j) is right[k * right_k + j *
// right_j].
__device__ void add_product(Tiles& sum, const uint32_t* left, int i_step, int k_step, const uint32_t* right,
                            int right_k, int right_j) {
  const int warp = static_cast<int>(threadIdx.x) / 32, g = static_cast<int>(threadIdx.x) % 32 / 4,
            t = static_cast<int>(threadIdx.x) % 4;
  left += (warp / 2 * 16 + g) * i_step + t * k_step;
  right += t * right_k + (warp % 2 * 16 + g) * right_j;
#pragma unroll
  for (int k = 0; k < chunk; k += 8, left += 8 * k_step, right += 8 * right_k) {
    const uint32_t l[4] = {left[0], left[8 * i_step], left[4 * k_step], left[8 * i_step + 4 * k_step]};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t r[2] = {right[n * 8 * right_j], right[n * 8 * right_j + 4 * right_k]};
      mma_tf32(sum[n], l, r);
    }
  }
}

// Launch: a block of 4 warps per segment of a sequence and head.
// Owns:   a warp 16 x 16 numbers of every product: of the weights, of y, of S.
// Shared: a chunk of x, a and b, the weights, and S, all rounded to TF32.
__global__ void __launch_bounds__(threads)
    ladder_tensor_cores_kernel(float* __restrict__ y, float* __restrict__ after, const float* __restrict__ x,
                               const float* __restrict__ a, const float* __restrict__ b,
                               const float* __restrict__ before, LadderSizes sizes, int64_t segment, int64_t segments) {
  const int64_t n = blockIdx.x / segments, first = blockIdx.x % segments * segment;
  const int64_t end = min(first + segment, sizes.length), state = static_cast<int64_t>(blockIdx.x) * LadderSizes::state;
  Shared shared;
  uint32_t* const xs = shared.take<uint32_t>(chunk * left_stride);       // [position, row of S]
  uint32_t* const as = shared.take<uint32_t>(chunk * left_stride);       // [position, row of S]
  uint32_t* const bs = shared.take<uint32_t>(chunk * right_stride);      // [position, column of S]
  uint32_t* const weights = shared.take<uint32_t>(chunk * left_stride);  // [i, j]
  uint32_t* const ss = shared.take<uint32_t>(chunk * right_stride);      // [row, column]

  Tiles s = {};
  if (before) each(s, [&](int r, int c, float& number) { number = before[state + r * ladder_width + c]; });
  for (int64_t begin = first; begin < end; begin += chunk) {
#pragma unroll
    for (int k = 0; k < chunk; k += threads / 32) {
      const int i = k + static_cast<int>(threadIdx.x) / 32, c = static_cast<int>(threadIdx.x) % 32;
      const bool inside = begin + i < end;  // behind the end are zeros, which add nothing
      const int64_t from = sizes.at(n, begin + i) + c;
      if (y) xs[i * left_stride + c] = inside ? to_tf32(x[from]) : 0;
      as[i * left_stride + c] = inside ? to_tf32(a[from]) : 0;
      bs[i * right_stride + c] = inside ? to_tf32(b[from]) : 0;
    }
    each(s, [&](int r, int c, float& number) { ss[r * right_stride + c] = to_tf32(number); });
    __syncthreads();

    if (y) {
      Tiles weight = {}, sum = {};
      add_product(weight, xs, left_stride, 1, as, 1, left_stride);
      each(weight, [&](int i, int j, float& w) { weights[i * left_stride + j] = j <= i ? to_tf32(w) : 0; });
      add_product(sum, xs, left_stride, 1, ss, right_stride, 1);
      __syncthreads();

      add_product(sum, weights, left_stride, 1, bs, right_stride, 1);
      each(sum, [&](int i, int c, float& number) {
        if (begin + i < end) y[sizes.at(n, begin + i) + c] = number;
      });
    }
    add_product(s, as, 1, left_stride, bs, right_stride, 1);
    __syncthreads();  // the next chunk overwrites what this one reads
  }
  if (after) each(s, [&](int r, int c, float& number) { after[state + r * ladder_width + c] = number; });
}

}  // namespace

void ladder_segments(float* y, float* after, const float* x, const float* a, const float* b, const float* before,
                     LadderSizes sizes, int64_t segment) {
  const int64_t segments = (sizes.length + segment - 1) / segment;
  const Grid grid{dim3(static_cast<unsigned>(sizes.sequences() * segments)), dim3(threads),
                  SharedBytes().add<uint32_t>(chunk * (3 * left_stride + 2 * right_stride)).bytes()};
  launch("ladder_tensor_cores", ladder_tensor_cores_kernel, grid, y, after, x, a, b, before, sizes, segment, segments);
}

void ladder_tensor_cores(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  ladder_segments(y, nullptr, x, a, b, nullptr, sizes, sizes.length);
}

}  // namespace runnel::cuda
