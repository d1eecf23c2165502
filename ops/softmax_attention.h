// Softmax attention: q [B,L,H,E], k [B,S,H,E], v [B,S,H,M] -> y [B,L,H,M]. ops/ops.h has the letters.
#pragma once
#include <optional>
#include <vector>

#include "engine/random.h"
#include "engine/tensor.h"
#include "ops/attention_mask.h"
#include "ops/band.h"

namespace runnel {

// Which keys queries see: those of query block r see all keys of the blocks seen[r], numbers in ascending order; or
// those of them that lie in a band. Positions [r n, (r + 1) n) are block r of blocks of n; the last block may be
// shorter. By length: seen[n R + r] are those of query block r of R where the mask's length leaves n key blocks, for n
// from 0 to all of them.
struct BlockPattern {
  BlockPattern(int64_t query_block, int64_t key_block, const std::vector<std::vector<int32_t>>& seen,
               int64_t key_blocks, Device device, std::optional<Band> band = {}, bool by_length = false);
  int64_t query_block, key_block;  // positions
  Indices first_key, keys;         // seen[r] is keys[first_key[r]] .. keys[first_key[r + 1] - 1]
  Indices first_query, queries;    // the same from the keys' side: the query blocks that see a key block
  std::optional<Band> band;
  bool by_length;
};

// At most one of these.
struct SoftmaxOptions {
  Dropout dropout = {};  // of the weights p_ij
  // [H,rows,columns], shared by the batch, or [B,H,rows,columns], of which the first L rows and S columns count; empty:
  // none. Without q and k (both empty), it is the scores, and L is S.
  Tensor bias = {};
  // Beside the mask. Time and memory grow with the pairs of blocks that it lists.
  std::optional<BlockPattern> pattern = {};
};
// Softmax attention, eq. 2: y_i = sum_j p_ij v_j, where p_ij is the softmax over the keys j that query i sees of the
// scores q_i . k_j / sqrt(E) + bias_ij. Memory grows with L, not with its square.
Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask = {},
                         const SoftmaxOptions& options = {});

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
