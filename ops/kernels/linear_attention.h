// The kernels of ops/linear_attention.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "ops/kernels/attention_sizes.h"
#include "ops/kernels/dispatch.h"
#include "ops/numerics.h"
#include "ops/types.h"

namespace runnel {

// Eq. 8-12 without the normaliser, Algorithm 1: y_i = q_i^T sum_{j<=i} k_j v_j^T.
KERNEL(causal_product_forward(float* y, const float* q, const float* k, const float* v, AttentionSizes sizes))
KERNEL(causal_product_backward(float* dq, float* dk, float* dv, const float* dy, const float* q, const float* k,
                               const float* v, AttentionSizes sizes))

// Causal linear attention with a feature map and the normaliser: y_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps), with
// S_i = S_0 + sum_{j<=i} phi(k_j) v_j^T [B,H,E,M] and Z_i = Z_0 + sum_{j<=i} phi(k_j) [B,H,E]. s0 and z0 (null: zero)
// are the state before the first position, s1 and z1 (null: not wanted) that after the last. States do not go with
// lengths.
KERNEL(causal_linear_attention_forward(float* y, float* s1, float* z1, const float* q, const float* k, const float* v,
                                       const float* s0, const float* z0, const int32_t* lengths, AttentionSizes sizes,
                                       FeatureMap map))
// ds0 and dz0 may be null: not wanted; ds1 and dz1, the gradients of the final state, may be null: zero.
KERNEL(causal_linear_attention_backward(float* dq, float* dk, float* dv, float* ds0, float* dz0, const float* dy,
                                        const float* ds1, const float* dz1, const float* y, const float* q,
                                        const float* k, const float* v, const float* s0, const float* z0,
                                        const int32_t* lengths, AttentionSizes sizes, FeatureMap map))
// Linear attention where every query sees all keys, eq. 5 and 6: one state for all of them.
KERNEL(full_linear_attention_forward(float* y, const float* q, const float* k, const float* v, const int32_t* lengths,
                                     AttentionSizes sizes, FeatureMap map))
KERNEL(full_linear_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* q,
                                      const float* k, const float* v, const int32_t* lengths, AttentionSizes sizes,
                                      FeatureMap map))
// One position of causal linear attention, eq. 18-20: L = S = 1. Updates the state s [B,H,E,M], z [B,H,E] in place. The
// numbers of s are float32, or bfloat16, to which they are rounded after y has been computed.
KERNEL(linear_attention_step(float* y, float* s, float* z, const float* q, const float* k, const float* v,
                             AttentionSizes sizes, FeatureMap map, Precision of_s))
constexpr int64_t state_row(int64_t m, Precision of_s) {  // floats that a row of s takes, one or two numbers in each
  return of_s == Precision::bf16 ? (m + 1) / 2 : m;
}

}  // namespace runnel
