// Ops that look at one element at a time, the bias that is added to every row, and sums.
//
// The first are a formula each, handed to map (cuda/map.h). The two sums must be the same in every run, so nothing is
// added by whoever comes first: a launch of many blocks, each of which owns a part and writes its sum, and then a
// second launch of the same kernel that adds the parts in their order.
#include "cuda/map.h"
#include "cuda/temporary.h"
#include "ops/kernels/elementwise.h"
#include "ops/kernels/sums.h"

namespace runnel::cuda {
namespace {

// Launch: over_fours(n), this and all that call map. Owns: y[i]. Shared: none.
__global__ void add_kernel(float* y, const float* a, const float* b, int64_t n) {
  map(
      y, n, [](float ai, float bi) { return ai + bi; }, Elements{a}, Elements{b});
}

__device__ float rounded_to_bf16(float x) { return __uint_as_float(uint32_t{to_bf16(x)} << 16); }

__global__ void add_to_bf16_kernel(float* y, const float* a, const float* b, int64_t n) {
  if (b)
    map(
        y, n, [](float ai, float bi) { return rounded_to_bf16(ai + bi); }, Elements{a}, Elements{b});
  else
    map(
        y, n, [](float ai) { return rounded_to_bf16(ai); }, Elements{a});
}

__global__ void scale_kernel(float* y, const float* x, float s, int64_t n) {
  map(
      y, n, [s](float xi) { return s * xi; }, Elements{x});
}

__global__ void multiply_kernel(float* y, const float* a, const float* b, int64_t n) {
  map(
      y, n, [](float ai, float bi) { return ai * bi; }, Elements{a}, Elements{b});
}

__global__ void add_bias_forward_kernel(float* y, const float* x, const float* b, int64_t rows, int64_t n) {
  map(
      y, rows * n, [](float xi, float bj) { return xi + bj; }, Elements{x}, RepeatedRow{b, n});
}

__global__ void relu_forward_kernel(float* y, const float* x, int64_t n) {
  map(
      y, n, [](float xi) { return xi < 0 ? 0 : xi; }, Elements{x});  // NaN stays NaN
}

__global__ void relu_backward_kernel(float* dx, const float* dy, const float* y, int64_t n) {
  map(
      dx, n, [](float dyi, float yi) { return yi > 0 ? dyi : 0; }, Elements{dy}, Elements{y});
}

// Phi(x), the standard normal distribution function.
__device__ float normal_cdf(float x) { return 0.5f * erfcf(-0.70710678f * x); }

__global__ void gelu_forward_kernel(float* y, const float* x, int64_t n) {
  map(
      y, n, [](float xi) { return xi * normal_cdf(xi); }, Elements{x});
}

__global__ void gelu_backward_kernel(float* dx, const float* dy, const float* x, int64_t n) {
  const auto rule = [](float dyi, float xi) {
    const float density = 0.39894228f * expf(-0.5f * xi * xi);
    return dyi * (normal_cdf(xi) + xi * density);
  };
  map(dx, n, rule, Elements{dy}, Elements{x});
}

__global__ void elu_plus_one_forward_kernel(float* y, const float* x, int64_t n) {
  map(
      y, n, [](float xi) { return xi > 0 ? xi + 1 : expf(xi); }, Elements{x});
}

__global__ void elu_plus_one_backward_kernel(float* dx, const float* dy, const float* y, int64_t n) {
  map(
      dx, n, [](float dyi, float yi) { return dyi * (yi < 1 ? yi : 1); }, Elements{dy}, Elements{y});
}

__global__ void fill_kernel(float* y, const float* s, int64_t n) {
  map(y, n, [value = s[0]] { return value; });
}

constexpr int tile = 32, row_lanes = 8;  // columns of a block, and rows that it looks at at once

// Launch: x a tile of columns, y a range of rows, z a layer; row_lanes warps. Owns: sums[z,y,j] for the j of its tile:
// the sum over its rows. A warp reads 32 neighbours of a row and adds every row_lanes-th row. Shared: a sum per thread.
__global__ void add_bias_backward_kernel(float* sums, const float* dy, int64_t rows, int64_t n,
                                         int64_t rows_per_block) {
  Shared shared;
  float* const warp_sums = shared.take<float>(tile * row_lanes);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * tile + lane;
  const int64_t begin = blockIdx.y * rows_per_block, end = min(rows, begin + rows_per_block);
  float sum = 0;
  if (j < n) {
#pragma unroll 4
    for (int64_t r = begin + warp; r < end; r += row_lanes) sum += dy[(blockIdx.z * rows + r) * n + j];
  }
  warp_sums[warp * tile + lane] = sum;
  __syncthreads();
  if (warp > 0 || j >= n) return;
  for (unsigned w = 1; w < row_lanes; ++w) sum += warp_sums[w * tile + lane];
  sums[(static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * n + j] = sum;
}

void add_rows(float* sums, const float* dy, int64_t layers, int64_t rows, int64_t n, int64_t parts) {
  Grid grid{
      dim3(static_cast<unsigned>((n + tile - 1) / tile), static_cast<unsigned>(parts), static_cast<unsigned>(layers)),
      dim3(32 * row_lanes)};
  grid.shared = SharedBytes().add<float>(tile * row_lanes).bytes();
  launch("add_bias_backward", add_bias_backward_kernel, grid, sums, dy, rows, n, (rows + parts - 1) / parts);
}

// Launch: at most most_parts blocks. Owns: sums[block], the sum of the elements that its threads come by, in double.
// Shared: for block_sum.
template <class Out, class In>
__global__ void sum_kernel(Out* sums, const In* x, int64_t n) {
  Shared shared;
  double* const scratch = shared.take<double>(32);
  double sum = 0;
  for (int64_t i = first_element(); i < n; i += element_step()) sum += static_cast<double>(x[i]);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = static_cast<Out>(sum);
}

constexpr int64_t most_parts = 512, least_per_part = 4096;

}  // namespace

void add(float* y, const float* a, const float* b, int64_t n) { launch("add", add_kernel, over_fours(n), y, a, b, n); }

void add_to_bf16(float* y, const float* a, const float* b, int64_t n) {
  launch("add_to_bf16", add_to_bf16_kernel, over_fours(n), y, a, b, n);
}

void scale(float* y, const float* x, float s, int64_t n) { launch("scale", scale_kernel, over_fours(n), y, x, s, n); }

void multiply(float* y, const float* a, const float* b, int64_t n) {
  launch("multiply", multiply_kernel, over_fours(n), y, a, b, n);
}

void add_bias_forward(float* y, const float* x, const float* b, int64_t rows, int64_t n) {
  launch("add_bias_forward", add_bias_forward_kernel, over_fours(rows * n), y, x, b, rows, n);
}

// The rows are shared out to so many blocks that the machine is full, but not to more than have something to do.
void add_bias_backward(float* db, const float* dy, int64_t layers, int64_t rows, int64_t n) {
  if (n == 0) return;
  const int64_t tiles = layers * ((n + tile - 1) / tile), wanted = (8 * multiprocessors() + tiles - 1) / tiles;
  const int64_t parts = std::clamp<int64_t>(rows / (8 * row_lanes), 1, wanted);
  if (parts == 1) return add_rows(db, dy, layers, rows, n, 1);
  const Temporary<float> sums(layers * parts * n);
  add_rows(sums.data(), dy, layers, rows, n, parts);
  add_rows(db, sums.data(), layers, parts, n, 1);
}

void relu_forward(float* y, const float* x, int64_t n) {
  launch("relu_forward", relu_forward_kernel, over_fours(n), y, x, n);
}

void relu_backward(float* dx, const float* dy, const float* y, int64_t n) {
  launch("relu_backward", relu_backward_kernel, over_fours(n), dx, dy, y, n);
}

void gelu_forward(float* y, const float* x, int64_t n) {
  launch("gelu_forward", gelu_forward_kernel, over_fours(n), y, x, n);
}

void gelu_backward(float* dx, const float* dy, const float* x, int64_t n) {
  launch("gelu_backward", gelu_backward_kernel, over_fours(n), dx, dy, x, n);
}

void elu_plus_one_forward(float* y, const float* x, int64_t n) {
  launch("elu_plus_one_forward", elu_plus_one_forward_kernel, over_fours(n), y, x, n);
}

void elu_plus_one_backward(float* dx, const float* dy, const float* y, int64_t n) {
  launch("elu_plus_one_backward", elu_plus_one_backward_kernel, over_fours(n), dx, dy, y, n);
}

void fill(float* y, const float* s, int64_t n) { launch("fill", fill_kernel, over_fours(n), y, s, n); }

void sum(float* total, const float* x, int64_t n) {
  const int64_t parts = std::clamp<int64_t>((n + least_per_part - 1) / least_per_part, 1, most_parts);
  const Grid one{dim3(1), dim3(256), SharedBytes().add<double>(32).bytes()};
  if (parts == 1) return launch("sum", sum_kernel<float, float>, one, total, x, n);
  const Temporary<double> sums(parts);
  launch("sum", sum_kernel<double, float>, Grid{dim3(static_cast<unsigned>(parts)), one.threads, one.shared},
         sums.data(), x, n);
  launch("sum", sum_kernel<float, double>, one, total, sums.data(), parts);
}

}  // namespace runnel::cuda
