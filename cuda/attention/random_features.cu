// Positive random features: the exponential with the norm, and its rule. ops/attention/random_features.cpp has the
// derivation.
#include <cmath>

#include "cuda/launch.h"
#include "ops/kernels.h"

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

}  // namespace runnel::cuda
