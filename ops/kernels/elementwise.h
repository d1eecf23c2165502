// The kernels of ops/elementwise.h. engine/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "engine/dispatch.h"

namespace runnel {

// y = s x
KERNEL(scale(float* y, const float* x, float s, int64_t n))
// y = a b
KERNEL(multiply(float* y, const float* a, const float* b, int64_t n))

// y[r,j] = x[r,j] + b[j];  db[l,j] = sum_r dy[l,r,j], of several layers
KERNEL(add_bias_forward(float* y, const float* x, const float* b, int64_t rows, int64_t n))
KERNEL(add_bias_backward(float* db, const float* dy, int64_t layers, int64_t rows, int64_t n))

// y = max(x, 0);  dx = dy where y > 0
KERNEL(relu_forward(float* y, const float* x, int64_t n))
KERNEL(relu_backward(float* dx, const float* dy, const float* y, int64_t n))

// y = x Phi(x), the exact form with erf;  dx = dy (Phi(x) + x phi(x))
KERNEL(gelu_forward(float* y, const float* x, int64_t n))
KERNEL(gelu_backward(float* dx, const float* dy, const float* x, int64_t n))

// y = elu(x) + 1, positive everywhere (eq. 7);  dx = dy min(y, 1)
KERNEL(elu_plus_one_forward(float* y, const float* x, int64_t n))
KERNEL(elu_plus_one_backward(float* dx, const float* dy, const float* y, int64_t n))

}  // namespace runnel
