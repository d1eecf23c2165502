// The kernels of ops/softmax_attention.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "engine/random.h"
#include "ops/kernels/attention_sizes.h"
#include "ops/kernels/dispatch.h"
#include "ops/types.h"

namespace runnel {

// Softmax attention, eq. 2: y_i = sum_j p_ij v_j, p_ij = softmax over j of q_i . k_j / sqrt(E), and
// l [B,H,L] = log sum_j exp(q_i . k_j / sqrt(E)). The dropout is that of the weights p_ij.
KERNEL(softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                 const int32_t* lengths, AttentionSizes sizes, Dropout dropout))
KERNEL(softmax_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                  const float* q, const float* k, const float* v, const int32_t* lengths,
                                  AttentionSizes sizes, Dropout dropout))
// The number, in the sense of `dropout`, of the first weight of query i of sequence n = b H + h: weights are counted as
// elements of a tensor [B,H,L,S'], S' being S rounded up to a multiple of 8, so that a Philox block belongs to one
// query.
constexpr int64_t first_weight(const AttentionSizes& s, int64_t n, int64_t i) {
  return (n * s.length + i) * ((s.key_length + 7) / 8 * 8);
}
// One position of causal softmax attention: writes k and v to column and row position[0] mod S of the caches [B,H,E,S]
// and [B,H,S,M], where S is their capacity, and attends to the last S positions up to there. L = 1.
KERNEL(softmax_attention_step(float* y, float* k_cache, float* v_cache, const float* q, const float* k, const float* v,
                              const int32_t* position, AttentionSizes sizes))

}  // namespace runnel
