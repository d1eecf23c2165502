// Softmax attention: q [B,L,H,E], k [B,S,H,E], v [B,S,H,M] -> y [B,L,H,M]. ops/ops.h has the letters.
#pragma once
#include "engine/random.h"
#include "engine/tensor.h"
#include "ops/attention_mask.h"
#include "ops/types.h"

namespace runnel {

// Softmax attention, eq. 2: y_i = sum_j p_ij v_j, where p_ij is the softmax over the keys j that query i sees of
// q_i . k_j / sqrt(E). Memory grows with L, not with its square. The dropout is applied to the weights p_ij.
Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask = {},
                         Dropout dropout = {});

// The KV cache of causal softmax attention ("stateful softmax" in the paper): keys and values of all positions so far.
struct KeyValueCache {
  Tensor k, v;         // [B,H,E,capacity] [B,H,capacity,M], of which the first positions are filled
  bool wraps = false;  // position p is kept at place p mod capacity, until another takes it: the last positions stay
};
// Causal softmax attention at one position, position[0], for decoding: puts k and v into the cache, in place, and
// attends to all positions there up to it. L = S = 1; on CUDA, M is at most 256. Has no gradient.
Tensor softmax_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, KeyValueCache& cache,
                              const Indices& position);

}  // namespace runnel
