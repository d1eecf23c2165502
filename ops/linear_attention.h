// Linear attention: q [B,L,H,E], k [B,S,H,E], v [B,S,H,M] -> y [B,L,H,M]. ops/ops.h has the letters.
#pragma once
#include "engine/tensor.h"
#include "ops/attention_mask.h"
#include "ops/numerics.h"
#include "ops/types.h"

namespace runnel {

// y_i = q_i^T sum_{j<=i} k_j v_j^T, eq. 8-12 without the normaliser, gradients by eq. 13-15.
Tensor causal_product(const Tensor& q, const Tensor& k, const Tensor& v);

// Linear attention, eq. 4-12: y_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps), where S_i = sum_j phi(k_j) v_j^T and
// Z_i = sum_j phi(k_j) are sums over the keys that query i sees.
Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask = {},
                        FeatureMap map = FeatureMap::elu_plus_one);

// The state of causal linear attention after some position, S [B,H,E,M] and Z [B,H,E]; empty: zero, before the first.
// For decoding, S may be kept in bfloat16, two numbers of a row in each float: s is [B,H,E,(M+1)/2] then.
struct AttentionState {
  Tensor s, z;
  Precision precision = Precision::f32;  // of S: f32 or bf16
};
// S and Z before the first position, for S of this shape: [B,H,E,M].
AttentionState zero_state(const Shape& of_s, Precision precision, Device device);
struct LinearAttentionResult {
  Tensor y;
  AttentionState state;
};
// Causal linear attention that goes on from a state and returns the one after its last position. Differentiable in
// both: a sequence may be computed in segments. Truncated backpropagation through time, one update per segment:
//
//   auto [y, next] = linear_attention(q, k, v, state);
//   optimizer.step(tape.backward(loss(y)));
//   state = {detach(next.s), detach(next.z)};  // a constant to the next segment
LinearAttentionResult linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionState& initial,
                                       FeatureMap map = FeatureMap::elu_plus_one);
// One position, eq. 18-20, for decoding: updates the state in place. L = S = 1. Has no gradient. In bf16, S is rounded
// after each position; y is computed before that.
Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, AttentionState& state,
                             FeatureMap map = FeatureMap::elu_plus_one);

}  // namespace runnel
