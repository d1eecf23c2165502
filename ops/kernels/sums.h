// The kernels of ops/sums.h. engine/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "engine/dispatch.h"

namespace runnel {

// total[0] = sum_i x[i], added in the same order every time.
KERNEL(sum(float* total, const float* x, int64_t n))
// y[i] = s[0]: the gradient of sum.
KERNEL(fill(float* y, const float* s, int64_t n))

// y[b] = mean of x[b,l] over l < lengths[b] (null: all), 0 if there are none: [B,L,D] -> [B,D]
KERNEL(mean_positions_forward(float* y, const float* x, const int32_t* lengths, int64_t batch, int64_t length,
                              int64_t d))
KERNEL(mean_positions_backward(float* dx, const float* dy, const int32_t* lengths, int64_t batch, int64_t length,
                               int64_t d))
// With a = x[2i], b = x[2i+1]: y[i] = (a, b, a b, a - b): [2 pairs,D] -> [pairs,4D]
KERNEL(pair_features_forward(float* y, const float* x, int64_t pairs, int64_t d))
KERNEL(pair_features_backward(float* dx, const float* dy, const float* x, int64_t pairs, int64_t d))

}  // namespace runnel
