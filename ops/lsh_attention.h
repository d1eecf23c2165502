// Attention by locality-sensitive hashing. ops/ops.h has the letters.
#pragma once
#include "engine/random.h"
#include "engine/tensor.h"
#include "ops/attention_mask.h"
#include "ops/types.h"

namespace runnel {

// Reformer's attention (Kitaev et al. 2020): in each of several rounds, positions are hashed into buckets by a random
// rotation per head, sorted by bucket and cut into chunks; a query sees the keys of its bucket in its chunk and in the
// one before, but itself only if it sees nothing else in any round. Keys are the queries, normalised to unit length.
// The rotations [rounds,H,E,buckets/2] are the normal numbers of `rotations`, in this order. At padding, y is 0. S is
// L; E, M and chunk are at most 256.
Tensor lsh_attention(const Tensor& q, const Tensor& v, const AttentionMask& mask, const Lsh& lsh, Key rotations);

}  // namespace runnel
