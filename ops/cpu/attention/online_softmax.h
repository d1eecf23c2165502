// The online softmax (Milakov and Gimelshein 2018) that the CPU kernels of softmax and lsh attention share.
//
// Blocks of scores have keys as rows and queries as columns: the maximum and the sum over keys are then taken of whole
// vectors, one query to a lane.
#pragma once
#include "ops/cpu/loops.h"
#include "ops/cpu/small_matrix.h"
#include "ops/kernels/attention_sizes.h"

namespace runnel {
namespace {

inline float score_scale(const AttentionSizes& s) { return 1 / sqrt(splat(static_cast<float>(s.e)))[0]; }
constexpr float hidden_score = minus_infinity;  // of a key that a query does not see

// Of each query of a block: the largest score m so far, the sum of all e^(x - m), and e^(m_before - m), with which what
// was summed up before the last keys is to be multiplied.
struct RunningSoftmax {
  float *largest, *total, *factor;
  int64_t queries;
};

// Scores of the next keys -> e^(x - m), and m, the sum and the factor.
RUNNEL_INLINE inline void advance_softmax(const RunningSoftmax& r, const Matrix& scores, int64_t keys) {
  for (int64_t c = 0; c < r.queries / lanes; ++c) {
    const Lanes before = load(r.largest + c * lanes);
    Lanes highest = before;
    for (int64_t j = 0; j < keys; ++j) highest = max(highest, scores.lanes_of(j)[c]);
    const Lanes base = highest == hidden_score ? Lanes{} : highest;  // as long as the query has seen no key
    const Lanes factor = exp(before - base);
    Lanes total = load(r.total + c * lanes) * factor;
    for (int64_t j = 0; j < keys; ++j) total += scores.lanes_of(j)[c] = exp(scores.lanes_of(j)[c] - base);
    store(r.largest + c * lanes, highest);
    store(r.factor + c * lanes, factor);
    store(r.total + c * lanes, total);
  }
}

}  // namespace
}  // namespace runnel
