// The kernels of ops/causal_convolution.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "ops/kernels/dispatch.h"

namespace runnel {

constexpr int64_t most_convolution_taps = 16;  // K

// z[b,t,c] = sum over j < K of weight[c,j] x[b,t-j,c];  y = z or silu(z). Rows before the first one are those of
// `before` [B,K-1,D], null: zeros.
struct ConvolutionSizes {
  int64_t batch, length, width, taps;  // B, L, D, K
  bool silu;
};
KERNEL(causal_convolution_forward(float* y, const float* x, const float* weight, const float* before,
                                  ConvolutionSizes sizes))
// dbefore may be null.
KERNEL(causal_convolution_backward(float* dx, float* dweight, float* dbefore, const float* dy, const float* x,
                                   const float* weight, const float* before, ConvolutionSizes sizes))
// L = 1; then moves the rows of `before` by one and appends x.
KERNEL(causal_convolution_step(float* y, float* before, const float* x, const float* weight, ConvolutionSizes sizes))

}  // namespace runnel
