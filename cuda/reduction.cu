// Sums, largest numbers and running sums over the middle axis of [outer,n,inner], and the softmax of rows.
//
// Sums must be the same in every run, so there are no atomics: a launch of many blocks, each of which owns a part and
// writes its sum, and then a second launch that adds the parts in their order.
#include "cuda/map.h"
#include "cuda/temporary.h"
#include "ops/kernels/reductions.h"

namespace runnel::cuda {
namespace {

constexpr int tile = 32, row_lanes = 8;  // columns of a block, and rows that it looks at at once

// Launch: x a tile of columns, y a range of rows, z a layer or every gridDim.z-th; row_lanes warps. Owns: sums[z,y,j]
// for the j of its tile: the sum over its rows. A warp reads 32 neighbours of a row and adds every row_lanes-th row.
// Shared: a sum per thread.
__global__ void sum_rows_kernel(float* sums, const float* x, int64_t layers, int64_t rows, int64_t n,
                                int64_t rows_per_block) {
  Shared shared;
  float* const warp_sums = shared.take<float>(tile * row_lanes);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * tile + lane;
  const int64_t begin = blockIdx.y * rows_per_block, end = min(rows, begin + rows_per_block);
  for (int64_t layer = blockIdx.z; layer < layers; layer += gridDim.z) {
    float sum = 0;
    if (j < n) {
#pragma unroll 4
      for (int64_t r = begin + warp; r < end; r += row_lanes) sum += x[(layer * rows + r) * n + j];
    }
    warp_sums[warp * tile + lane] = sum;
    __syncthreads();
    if (warp == 0 && j < n) {
      for (unsigned w = 1; w < row_lanes; ++w) sum += warp_sums[w * tile + lane];
      sums[(layer * gridDim.y + blockIdx.y) * n + j] = sum;
    }
    __syncthreads();
  }
}

void sum_rows(float* sums, const float* x, int64_t layers, int64_t rows, int64_t n, int64_t parts) {
  Grid grid{dim3(static_cast<unsigned>((n + tile - 1) / tile), static_cast<unsigned>(parts),
                 static_cast<unsigned>(std::min<int64_t>(layers, 65535))),
            dim3(32 * row_lanes)};
  grid.shared = SharedBytes().add<float>(tile * row_lanes).bytes();
  launch("sum", sum_rows_kernel, grid, sums, x, layers, rows, n, (rows + parts - 1) / parts);
}

// Launch: at most max_parts blocks. Owns: sums[block], the sum of the elements of its grid-stride loop, in double.
// Shared: for block_sum.
template <class Out, class In>
__global__ void sum_all_kernel(Out* sums, const In* x, int64_t n) {
  Shared shared;
  double* const scratch = shared.take<double>(32);
  double sum = 0;
  for (int64_t i = first_element(); i < n; i += element_step()) sum += static_cast<double>(x[i]);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = static_cast<Out>(sum);
}

constexpr int64_t max_parts = 512, min_per_part = 4096;

void sum_all(float* total, const float* x, int64_t n) {
  const int64_t parts = std::clamp<int64_t>((n + min_per_part - 1) / min_per_part, 1, max_parts);
  const Grid one{dim3(1), dim3(256), SharedBytes().add<double>(32).bytes()};
  if (parts == 1) return launch("sum", sum_all_kernel<float, float>, one, total, x, n);
  const Temporary<double> sums(parts);
  launch("sum", sum_all_kernel<double, float>, Grid{dim3(static_cast<unsigned>(parts)), one.threads, one.shared},
         sums.data(), x, n);
  launch("sum", sum_all_kernel<float, double>, one, total, sums.data(), parts);
}

constexpr int warp = 32;

// Launch: a warp per row. Owns: y[r]. Shared: none.
__global__ void sum_short_rows_kernel(float* y, const float* x, int64_t rows, int64_t n) {
  for (int64_t r = first_element() / warp; r < rows; r += element_step() / warp) {
    double sum = 0;
    for (int64_t j = threadIdx.x % warp; j < n; j += warp) sum += static_cast<double>(x[r * n + j]);
    sum = warp_sum(sum);
    if (threadIdx.x % warp == 0) y[r] = static_cast<float>(sum);
  }
}

// Whether b stands before a: it is larger, or NaN, and of equal ones it has the smaller index.
__device__ bool comes_first(float b, int64_t at_b, float a, int64_t at_a) {
  const bool a_is_nan = a != a, b_is_nan = b != b;
  if (a_is_nan || b_is_nan) return b_is_nan && (!a_is_nan || at_b < at_a);
  return b > a || (b == a && at_b < at_a);
}

// Launch: `team` lanes, 1 or a warp, per number of y. Owns: y[i], index[i]. Shared: none.
template <int team>
__global__ void max_forward_kernel(float* y, int32_t* index, const float* x, int64_t outer, int64_t n, int64_t inner) {
  for (int64_t i = first_element() / team; i < outer * inner; i += element_step() / team) {
    const float* const from = x + i / inner * n * inner + i % inner;
    int64_t at = min(static_cast<int64_t>(threadIdx.x % team), n - 1);
    float largest = from[at * inner];
    for (int64_t j = at + team; j < n; j += team) {
      const float xj = from[j * inner];
      if (!comes_first(xj, j, largest, at)) continue;
      largest = xj;
      at = j;
    }
    for (int distance = team / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(all_lanes, largest, distance);
      const int64_t at_other = __shfl_xor_sync(all_lanes, at, distance);
      if (!comes_first(other, at_other, largest, at)) continue;
      largest = other;
      at = at_other;
    }
    if (threadIdx.x % team != 0) continue;
    y[i] = largest;
    index[i] = static_cast<int32_t>(at);
  }
}

// Launch: a thread per element. Owns: dx[i]. Shared: none.
__global__ void max_backward_kernel(float* dx, const float* dy, const int32_t* index, int64_t outer, int64_t n,
                                    int64_t inner) {
  for (int64_t i = first_element(); i < outer * n * inner; i += element_step()) {
    const int64_t at = i / (n * inner) * inner + i % inner;
    dx[i] = index[at] == i / inner % n ? dy[at] : 0;
  }
}

// Launch: a thread per column. Owns: y[o,:,i]. Shared: none.
__global__ void cumulative_sum_kernel(float* y, const float* x, int64_t outer, int64_t n, int64_t inner, bool reverse) {
  for (int64_t i = first_element(); i < outer * inner; i += element_step()) {
    const int64_t first = i / inner * n * inner + i % inner;
    float sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = first + (reverse ? n - 1 - j : j) * inner;
      y[at] = sum += x[at];
    }
  }
}

// Launch: a warp per row. Owns: y[r,:]. Shared: none.
__global__ void softmax_forward_kernel(float* y, const float* x, int64_t rows, int64_t n, bool log) {
  for (int64_t r = first_element() / warp; r < rows; r += element_step() / warp) {
    const float* const xr = x + r * n;
    float largest = -INFINITY, sum = 0;
    for (int64_t j = threadIdx.x % warp; j < n; j += warp) largest = fmaxf(largest, xr[j]);
    largest = warp_max(largest);
    for (int64_t j = threadIdx.x % warp; j < n; j += warp) sum += expf(xr[j] - largest);
    sum = warp_sum(sum);
    const float shift = largest + logf(sum);
    for (int64_t j = threadIdx.x % warp; j < n; j += warp)
      y[r * n + j] = log ? xr[j] - shift : expf(xr[j] - largest) / sum;
  }
}

// Launch: a warp per row. Owns: dx[r,:]. Shared: none.
__global__ void softmax_backward_kernel(float* dx, const float* dy, const float* y, int64_t rows, int64_t n, bool log) {
  for (int64_t r = first_element() / warp; r < rows; r += element_step() / warp) {
    const float *const g = dy + r * n, *const yr = y + r * n;
    float sum = 0;
    for (int64_t j = threadIdx.x % warp; j < n; j += warp) sum += log ? g[j] : g[j] * yr[j];
    sum = warp_sum(sum);
    for (int64_t j = threadIdx.x % warp; j < n; j += warp)
      dx[r * n + j] = log ? g[j] - expf(yr[j]) * sum : yr[j] * (g[j] - sum);
  }
}

}  // namespace

// With columns behind the axis, the rows are shared out to so many blocks that the machine is full, but not to more
// than have something to do.
void sum(float* y, const float* x, int64_t outer, int64_t n, int64_t inner) {
  if (outer == 0 || inner == 0) return;
  if (inner == 1 && outer == 1) return sum_all(y, x, n);
  if (inner == 1) return launch("sum", sum_short_rows_kernel, over(outer * warp), y, x, outer, n);
  const int64_t tiles = outer * ((inner + tile - 1) / tile), wanted = (8 * multiprocessors() + tiles - 1) / tiles;
  const int64_t parts = std::clamp<int64_t>(n / (8 * row_lanes), 1, wanted);
  if (parts == 1) return sum_rows(y, x, outer, n, inner, 1);
  const Temporary<float> sums(outer * parts * inner);
  sum_rows(sums.data(), x, outer, n, inner, parts);
  sum_rows(y, sums.data(), outer, parts, inner, 1);
}

void max_forward(float* y, int32_t* index, const float* x, int64_t outer, int64_t n, int64_t inner) {
  if (n < warp) return launch("max_forward", max_forward_kernel<1>, over(outer * inner), y, index, x, outer, n, inner);
  launch("max_forward", max_forward_kernel<warp>, over(outer * inner * warp), y, index, x, outer, n, inner);
}

void max_backward(float* dx, const float* dy, const int32_t* index, int64_t outer, int64_t n, int64_t inner) {
  launch("max_backward", max_backward_kernel, over(outer * n * inner), dx, dy, index, outer, n, inner);
}

void cumulative_sum(float* y, const float* x, int64_t outer, int64_t n, int64_t inner, bool reverse) {
  launch("cumulative_sum", cumulative_sum_kernel, over(outer * inner), y, x, outer, n, inner, reverse);
}

void softmax_forward(float* y, const float* x, int64_t rows, int64_t n, bool log) {
  launch("softmax_forward", softmax_forward_kernel, over(rows * warp), y, x, rows, n, log);
}

void softmax_backward(float* dx, const float* dy, const float* y, int64_t rows, int64_t n, bool log) {
  launch("softmax_backward", softmax_backward_kernel, over(rows * warp), dx, dy, y, rows, n, log);
}

}  // namespace runnel::cuda
