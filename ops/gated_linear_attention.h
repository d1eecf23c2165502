// Causal linear attention with gates: what is kept of the state, and how strongly each position writes into it. RetNet,
// Mamba-2, GLA, DeltaNet, Gated DeltaNet and Kimi Delta Attention are cases of it: docs/attention.md. ops/ops.h has the
// letters.
#pragma once
#include "engine/tensor.h"
#include "ops/types.h"

namespace runnel {

struct Gates {
  UpdateRule rule = UpdateRule::additive;
  Tensor beta = {};  // [B,L,H], the strength of a position's write; empty: 1
  Tensor decay =
      {};  // g <= 0 [B,L,H], or for each key channel [B,L,H,E]: e^g is kept of the state; empty: 0, all of it
};

struct GatedLinearResult {
  Tensor y;      // [B,L,H,M]
  Tensor state;  // S after the last position [B,H,E,M]
};
// With a_t = e^g_t, a number or a diagonal matrix, S_0 = `state` [B,H,E,M] (empty: zero) and q, k [B,L,H,E], v
// [B,L,H,M],
//
//   additive:  S_t = a_t S_{t-1} + beta_t k_t v_t^T
//   delta:     S_t = a_t S_{t-1} + beta_t k_t (v_t - (a_t S_{t-1})^T k_t)^T
//   y_t = S_t^T q_t
//
// Neither scales q nor maps features. Positions from lengths[b] on are padding, which neither writes nor decays;
// lengths [B], empty: all are L. On CUDA, E and M are at most 512. Differentiable in all tensors; no states are kept
// for that (ops/cpu/attention/gated_linear_attention.cpp).
GatedLinearResult gated_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Gates& gates = {},
                                         const Tensor& state = {}, const Indices& lengths = {});
// One position, L = 1, for decoding: updates the state in place. Has no gradient.
Tensor gated_linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, const Gates& gates,
                                   Tensor& state);  // -> [B,1,H,M]

}  // namespace runnel
