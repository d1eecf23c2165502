// Kinds of sparse, biased and approximate softmax attention, as Long Range Arena compares them. ops/ops.h has the
// letters.
#pragma once
#include <optional>
#include <vector>

#include "engine/random.h"
#include "engine/tensor.h"
#include "ops/attention_mask.h"
#include "ops/lra/band.h"

namespace runnel {

// Which keys queries see in block_sparse_attention: those of query block r see all keys of the blocks seen[r], numbers
// in ascending order; or those of them that lie in a band. Positions [r n, (r + 1) n) are block r of blocks of n; the
// last block may be shorter. By length: seen[n R + r] are those of query block r of R where the mask's length leaves n
// key blocks, for n from 0 to all of them.
struct BlockPattern {
  BlockPattern(int64_t query_block, int64_t key_block, const std::vector<std::vector<int32_t>>& seen,
               int64_t key_blocks, Device device, std::optional<Band> band = {}, bool by_length = false);
  int64_t query_block, key_block;  // positions
  Indices first_key, keys;         // seen[r] is keys[first_key[r]] .. keys[first_key[r + 1] - 1]
  Indices first_query, queries;    // the same from the keys' side: the query blocks that see a key block
  std::optional<Band> band;
  bool by_length;
};
// Softmax attention of each query to the keys that the pattern and the mask let it see. Time and memory grow with the
// pairs of blocks that are listed.
Tensor block_sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v, const BlockPattern& pattern,
                              const AttentionMask& mask = {});

// Softmax attention with the logits q_i . k_j / sqrt(E) + bias_ij; without q and k (both empty): bias_ij, and L is S.
// bias is [H,rows,columns], shared by the batch, or [B,H,rows,columns]; its first L rows and S columns count. The mask
// must not be causal.
Tensor biased_softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
                                const AttentionMask& mask);

// Positive random features (Choromanski et al. 2021): f_c = exp(w_c . x' - |x'|^2 / 2) / sqrt(F), x' = x / E^(1/4),
// with w_c the rows of the projection, which gets no gradient. Linear attention on them, with FeatureMap::identity,
// estimates softmax attention. f_c is at most exp(|w_c|^2 / 2) / sqrt(F), whatever x.
Tensor positive_random_features(const Tensor& x, const Tensor& projection);  // [...,E] [F,E] -> [...,F]
// [F,E]: normal rows, made orthogonal E at a time, which lowers the variance of the estimate.
Tensor random_projection(int64_t features, int64_t e, Key key, Device device = Device::cpu);

// For Sparse Sinkhorn Attention (Tay et al. 2020), whose positions are in N blocks; those j >= lengths[b] are padding.
// Doubly stochastic matrices: e^logits of the first N columns, whose rows and then columns are normalised, `iterations`
// times. Rows and columns of blocks that are padding alone are 0.
Tensor sinkhorn(const Tensor& logits, int64_t iterations, int64_t block,
                const Indices& lengths = {});  // [B,N,H,at least N] [B] -> [B,H,N,N]

}  // namespace runnel
