// The kernels of ops/softmax_attention.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>
#include <optional>

#include "engine/random.h"
#include "ops/band.h"
#include "ops/kernels/attention_sizes.h"
#include "ops/kernels/dispatch.h"

namespace runnel {

constexpr int64_t blocks_of(int64_t positions, int64_t block) { return (positions + block - 1) / block; }
// A bias of the scores: [H,rows,columns], shared by the batch, or [B,H,rows,columns]; rows >= L, columns >= S.
struct AttentionBias {
  const float* data = nullptr;  // null: there is none
  int64_t rows = 0, columns = 0;
  bool is_shared = false;
};
// A BlockPattern: query block r sees the key blocks keys[first_key[r]] .. keys[first_key[r + 1] - 1], and key block c
// is seen by the query blocks queries[first_query[c]] .., all ascending. If it is by length, a sequence whose keys fill
// n blocks, in part or whole, has number n of so many such lists, one after another.
struct BlockLists {
  int64_t query_block = 0, key_block = 0;  // positions in a block; the last ones may have fewer
  const int32_t *first_key = nullptr, *keys = nullptr, *first_query = nullptr, *queries = nullptr;  // null: no pattern
  std::optional<Band> band = {};
  bool by_length = false;
};
struct SoftmaxSettings {  // at most one of these
  Dropout dropout = {};
  AttentionBias bias = {};
  BlockLists pattern = {};
};
// Softmax attention, eq. 2: y_i = sum_j p_ij v_j, p_ij = softmax of x_ij over the keys j that query i sees, x_ij = q_i
// . k_j / sqrt(E) + bias_ij; E = 0: bias_ij alone, and q, k, dq and dk are null. l [B,H,L] = log sum_j e^x_ij, infinity
// where a query sees no key. dbias may be null: not wanted.
KERNEL(softmax_attention_forward(float* y, float* l, const float* q, const float* k, const float* v,
                                 const int32_t* lengths, AttentionSizes sizes, SoftmaxSettings settings))
KERNEL(softmax_attention_backward(float* dq, float* dk, float* dv, float* dbias, const float* dy, const float* y,
                                  const float* l, const float* q, const float* k, const float* v,
                                  const int32_t* lengths, AttentionSizes sizes, SoftmaxSettings settings))
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
