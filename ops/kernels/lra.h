// The kernels of ops/lra/attention.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "engine/random.h"
#include "ops/kernels/dispatch.h"

namespace runnel {

// Positive random features (Choromanski et al. 2021) of x [rows,E] from its products p [rows,F] with the projection:
// y[r,c] = exp(s p[r,c] - s^2 |x_r|^2 / 2) / sqrt(F), s = E^(-1/4). dx is the gradient by way of the norm only.
KERNEL(positive_random_features_forward(float* y, const float* p, const float* x, int64_t rows, int64_t features,
                                        int64_t e))
KERNEL(positive_random_features_backward(float* dp, float* dx, const float* dy, const float* y, const float* x,
                                         int64_t rows, int64_t features, int64_t e))
// Their projection w [features,e]: row r is made of the normal numbers key.fold(0).normal(r e + i), orthogonal to the
// rows before it from the last multiple of e on, and as long as the row of the numbers key.fold(1).normal(r e + i).
KERNEL(random_projection(float* w, Key key, int64_t features, int64_t e))

// P [B,H,N,N] from logits [B,N,H,columns], whose first N columns are read: e^logits with rows and columns normalised in
// turn, see ops/cpu/lra/sinkhorn.cpp. Only blocks that are not padding alone take part; P is 0 in all other rows
// and columns.
struct SinkhornSizes {
  int64_t batch, blocks, heads, columns, block, iterations;
  constexpr int64_t sequences() const { return batch * heads; }
  // Where row r of sequence n = b H + h begins.
  constexpr int64_t logit(int64_t n, int64_t r) const {
    return ((n / heads * blocks + r) * heads + n % heads) * columns;
  }
};
KERNEL(sinkhorn_forward(float* p, const float* logits, const int32_t* lengths, SinkhornSizes sizes))
KERNEL(sinkhorn_backward(float* dlogits, const float* dp, const float* p, const float* logits, const int32_t* lengths,
                         SinkhornSizes sizes))

}  // namespace runnel
