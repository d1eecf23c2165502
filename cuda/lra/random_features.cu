// Positive random features: the exponential with the norm, its rule, and the projection.
// ops/cpu/lra/random_features.cpp has the derivation.
#include <cmath>

#include "cuda/draw.h"
#include "cuda/temporary.h"
#include "ops/kernels/lra.h"

namespace runnel::cuda {
namespace {

// Launch: a warp per row. Owns: the warp its row. Shared: none.
__global__ void positive_random_features_forward_kernel(float* y, const float* p, const float* x, int64_t rows,
                                                        int64_t features, int64_t e, float scale, float factor) {
  const int64_t lane = threadIdx.x % 32;
  for (int64_t r = first_element() / 32; r < rows; r += element_step() / 32) {
    float squares = 0;
    for (int64_t i = lane; i < e; i += 32) squares += x[r * e + i] * x[r * e + i];
    const float shift = 0.5f * scale * scale * warp_sum(squares);
    for (int64_t c = lane; c < features; c += 32)
      y[r * features + c] = factor * expf(scale * p[r * features + c] - shift);
  }
}

// Launch, owns, shared: as above.
__global__ void positive_random_features_backward_kernel(float* dp, float* dx, const float* dy, const float* y,
                                                         const float* x, int64_t rows, int64_t features, int64_t e,
                                                         float scale) {
  const int64_t lane = threadIdx.x % 32;
  for (int64_t r = first_element() / 32; r < rows; r += element_step() / 32) {
    float sum = 0;
    for (int64_t c = lane; c < features; c += 32) {
      const float slope = dy[r * features + c] * y[r * features + c];
      dp[r * features + c] = scale * slope;
      sum += slope;
    }
    sum = warp_sum(sum);
    for (int64_t i = lane; i < e; i += 32) dx[r * e + i] = -scale * scale * sum * x[r * e + i];
  }
}

// Gram and Schmidt: in each row of `rows` [features,e], the part along the rows before it, all found at once.
// Launch: a block for e rows. Owns: these rows, of both arrays. Shared: a number for each row, and for block_sum.
__global__ void random_projection_kernel(float* w, double* rows, Key key, int64_t features, int64_t e) {
  Shared shared;
  double* const along = shared.take<double>(static_cast<unsigned>(e));
  double* const scratch = shared.take<double>(32);
  const Key directions = key.fold(0), lengths = key.fold(1);
  const int64_t first = blockIdx.x * e, count = min(e, features - first);
  const int64_t thread = threadIdx.x, threads = blockDim.x, lane = thread % 32;
  for (int64_t r = 0; r < count; ++r) {
    double* const row = rows + (first + r) * e;
    double new_square = 0, square = 0;
    for (int64_t i = thread; i < e; i += threads) {
      row[i] = static_cast<double>(draw_normal(directions, (first + r) * e + i));
      const double measure = static_cast<double>(draw_normal(lengths, (first + r) * e + i));
      new_square += measure * measure;
    }
    __syncthreads();
    for (int64_t o = thread / 32; o < r; o += threads / 32) {
      double dot = 0;
      for (int64_t i = lane; i < e; i += 32) dot += row[i] * rows[(first + o) * e + i];
      dot = warp_sum(dot);
      if (lane == 0) along[o] = dot;
    }
    __syncthreads();
    for (int64_t i = thread; i < e; i += threads) {
      double left = row[i];
      for (int64_t o = 0; o < r; ++o) left -= along[o] * rows[(first + o) * e + i];
      row[i] = left;
      square += left * left;
    }
    const double length = sqrt(block_sum(square, scratch)), new_length = sqrt(block_sum(new_square, scratch));
    for (int64_t i = thread; i < e; i += threads) {
      row[i] /= length;
      w[(first + r) * e + i] = static_cast<float>(new_length * row[i]);
    }
  }
}

float scale_of(int64_t e) { return 1 / std::sqrt(std::sqrt(static_cast<float>(e))); }

}  // namespace

void positive_random_features_forward(float* y, const float* p, const float* x, int64_t rows, int64_t features,
                                      int64_t e) {
  launch("positive_random_features_forward", positive_random_features_forward_kernel, over(32 * rows), y, p, x, rows,
         features, e, scale_of(e), 1 / std::sqrt(static_cast<float>(features)));
}

void positive_random_features_backward(float* dp, float* dx, const float* dy, const float* y, const float* x,
                                       int64_t rows, int64_t features, int64_t e) {
  launch("positive_random_features_backward", positive_random_features_backward_kernel, over(32 * rows), dp, dx, dy, y,
         x, rows, features, e, scale_of(e));
}

void random_projection(float* w, Key key, int64_t features, int64_t e) {
  const Temporary<double> rows(features * e);
  const Grid grid{dim3(static_cast<unsigned>((features + e - 1) / e)), dim3(256),
                  SharedBytes().add<double>(e).add<double>(32).bytes()};
  launch("random_projection", random_projection_kernel, grid, w, rows.data(), key, features, e);
}

}  // namespace runnel::cuda
