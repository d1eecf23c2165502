// The kernels of ops/lra/attention.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>
#include <optional>

#include "engine/random.h"
#include "ops/kernels/attention_sizes.h"
#include "ops/kernels/dispatch.h"
#include "ops/lra/band.h"

namespace runnel {

constexpr int64_t blocks_of(int64_t positions, int64_t block) { return (positions + block - 1) / block; }
// A BlockPattern (ops/lra/attention.h): query block r sees the key blocks keys[first_key[r]] .. keys[first_key[r +
// 1] - 1], and key block c is seen by the query blocks queries[first_query[c]] .., all ascending. If it is by length, a
// sequence whose keys fill n blocks, in part or whole, has number n of so many such lists, one after another.
struct BlockLists {
  int64_t query_block, key_block;  // positions in a block; the last ones may have fewer
  const int32_t *first_key, *keys, *first_query, *queries;
  std::optional<Band> band;
  bool by_length;
};
// Softmax attention of each query to the keys of the listed blocks, in the band if there is one; y and l [B,H,L] as
// above, l infinity where a query sees no key.
KERNEL(block_sparse_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                      BlockLists pattern, const int32_t* lengths, AttentionSizes sizes))
KERNEL(block_sparse_attention_backward(float* dq, float* dk, float* dv, const float* dy, const float* y, const float* l,
                                       const float* q, const float* k, const float* v, BlockLists pattern,
                                       const int32_t* lengths, AttentionSizes sizes))

// A bias of the scores: [H,rows,columns], shared by the batch, or [B,H,rows,columns]; rows >= L, columns >= S.
struct AttentionBias {
  const float* data;
  int64_t rows, columns;
  bool is_shared;
};
// Softmax attention, not causal, with the scores q_i . k_j / sqrt(E) + bias_ij; E = 0: bias_ij alone, and q, k, dq and
// dk are null. l is infinity where a query sees no key. dbias may be null: not wanted.
KERNEL(biased_softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                        AttentionBias bias, const int32_t* lengths, AttentionSizes sizes))
KERNEL(biased_softmax_attention_backward(float* dq, float* dk, float* dv, float* dbias, const float* dy, const float* y,
                                         const float* l, const float* q, const float* k, const float* v,
                                         AttentionBias bias, const int32_t* lengths, AttentionSizes sizes))

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
