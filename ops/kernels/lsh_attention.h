// The kernels of ops/lsh_attention.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "engine/random.h"
#include "ops/kernels/attention_sizes.h"
#include "ops/kernels/dispatch.h"
#include "ops/types.h"

namespace runnel {

// Reformer's attention, see ops/cpu/attention/lsh_attention.cpp. S is L.
constexpr int64_t lsh_most = 256;           // E, M and the positions of a chunk
constexpr int64_t lsh_most_buckets = 4096;  // CUDA counts them in shared memory
// rotations[i] = key.normal(i)
KERNEL(lsh_rotations(float* rotations, Key key, int64_t n))
// buckets [rounds,B,H,L]: the index of the first largest number in [q_i R, -q_i R], with the rotations R
// [rounds,H,E,buckets/2].
KERNEL(lsh_hash(int32_t* buckets, const float* q, const float* rotations, AttentionSizes sizes, Lsh lsh))
// Sorts the positions of each sequence and round by bucket and position, padding last. The query at a place of that
// order sees the places [begin,end) but itself, all three [rounds,B,H,L]: those of its bucket in its chunk and in the
// chunk before; if causal, those before its own. begin and end never decrease from place to place; padding sees
// nothing.
KERNEL(lsh_sort(int32_t* order, int32_t* begin, int32_t* end, const int32_t* buckets, const int32_t* lengths,
                AttentionSizes sizes, Lsh lsh))
struct LshPlaces {
  const int32_t *order, *begin, *end;  // [rounds,B,H,L]
};
// y_i = sum_j p_ij v_j, p_ij = e^(x_ij - l_i), x_ij = q_i . k_j / sqrt(E), k_j = q_j / |q_j| (0 where |q_j| < 1e-6),
// where j runs over the keys that i sees in a round, in one round after the other. A query that sees nothing in any of
// them has y_i = v_i and l_i = infinity; at padding, y_i = 0. l [B,H,L].
KERNEL(lsh_attention_forward(float* y, float* l, const float* q, const float* v, LshPlaces places,
                             const int32_t* lengths, AttentionSizes sizes, Lsh lsh))
KERNEL(lsh_attention_backward(float* dq, float* dv, const float* dy, const float* y, const float* l, const float* q,
                              const float* v, LshPlaces places, const int32_t* lengths, AttentionSizes sizes, Lsh lsh))

}  // namespace runnel
