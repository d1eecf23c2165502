// Means over positions.
#include "cuda/launch.h"
#include "ops/kernels/reductions.h"

namespace runnel::cuda {
namespace {

constexpr int tile = 32, row_lanes = 8;  // columns of a block, and positions that it looks at at once

// Launch: x a tile of columns, y a sequence; row_lanes warps. Owns: y[b,j] for the j of its tile: a warp reads 32
// neighbours of a position and adds every row_lanes-th position. Shared: a sum per thread.
__global__ void mean_positions_forward_kernel(float* y, const float* x, const int32_t* lengths, int64_t length,
                                              int64_t d) {
  Shared shared;
  float* const warp_sums = shared.take<float>(tile * row_lanes);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * tile + lane, b = blockIdx.y;
  const int64_t valid = lengths ? lengths[b] : length;
  float sum = 0;
  if (j < d)
    for (int64_t l = warp; l < valid; l += row_lanes) sum += x[(b * length + l) * d + j];
  warp_sums[warp * tile + lane] = sum;
  __syncthreads();
  if (warp > 0 || j >= d) return;
  for (unsigned w = 1; w < row_lanes; ++w) sum += warp_sums[w * tile + lane];
  y[b * d + j] = valid ? sum / static_cast<float>(valid) : 0;
}

// Launch: over(batch length d). Owns: dx[i]. Shared: none.
__global__ void mean_positions_backward_kernel(float* dx, const float* dy, const int32_t* lengths, int64_t length,
                                               int64_t d, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t row = i / d, b = row / length, valid = lengths ? lengths[b] : length;
    dx[i] = row % length < valid ? dy[b * d + i % d] / static_cast<float>(valid) : 0;
  }
}

}  // namespace

void mean_positions_forward(float* y, const float* x, const int32_t* lengths, int64_t batch, int64_t length,
                            int64_t d) {
  const Grid grid{dim3(static_cast<unsigned>((d + tile - 1) / tile), static_cast<unsigned>(batch)),
                  dim3(32 * row_lanes), SharedBytes().add<float>(tile * row_lanes).bytes()};
  launch("mean_positions_forward", mean_positions_forward_kernel, grid, y, x, lengths, length, d);
}

void mean_positions_backward(float* dx, const float* dy, const int32_t* lengths, int64_t batch, int64_t length,
                             int64_t d) {
  const int64_t n = batch * length * d;
  launch("mean_positions_backward", mean_positions_backward_kernel, over(n), dx, dy, lengths, length, d, n);
}

}  // namespace runnel::cuda
