// What approximations of softmax attention are made of. ops/ops.h has the letters.
#pragma once
#include "engine/random.h"
#include "engine/tensor.h"
#include "ops/attention_mask.h"
#include "ops/types.h"

namespace runnel {

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
// Reformer's attention (Kitaev et al. 2020): in each of several rounds, positions are hashed into buckets by a random
// rotation per head, sorted by bucket and cut into chunks; a query sees the keys of its bucket in its chunk and in the
// one before, but itself only if it sees nothing else in any round. Keys are the queries, normalised to unit length.
// The rotations [rounds,H,E,buckets/2] are the normal numbers of `rotations`, in this order. At padding, y is 0. S is
// L; E, M and chunk are at most 256.
Tensor lsh_attention(const Tensor& q, const Tensor& v, const AttentionMask& mask, const Lsh& lsh, Key rotations);

}  // namespace runnel
