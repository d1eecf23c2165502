// The kernels of ops/reductions.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "ops/kernels/dispatch.h"

namespace runnel {

// Over the middle axis of x [outer,n,inner]; y, dy and index are [outer,inner].
KERNEL(sum(float* y, const float* x, int64_t outer, int64_t n, int64_t inner))
// index: that of the first largest number, or of the first NaN.
KERNEL(max_forward(float* y, int32_t* index, const float* x, int64_t outer, int64_t n, int64_t inner))
KERNEL(max_backward(float* dx, const float* dy, const int32_t* index, int64_t outer, int64_t n, int64_t inner))
// y[o,j,i] = sum of x[o,l,i] over l <= j; reverse: over l >= j
KERNEL(cumulative_sum(float* y, const float* x, int64_t outer, int64_t n, int64_t inner, bool reverse))
// Of each row; `log`: of the logarithm of the softmax.
KERNEL(softmax_forward(float* y, const float* x, int64_t rows, int64_t n, bool log))
KERNEL(softmax_backward(float* dx, const float* dy, const float* y, int64_t rows, int64_t n, bool log))

}  // namespace runnel
