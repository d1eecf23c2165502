// The online softmax (Milakov and Gimelshein 2018) that the CPU kernels of softmax and lsh attention share.
//
// Blocks of scores have keys as rows and queries as columns: the maximum and the sum over keys are then taken of whole
// vectors, one query to a lane.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "ops/cpu/math.h"
#include "ops/cpu/small_matrix.h"
#include "ops/kernels.h"

namespace runnel::cpu {

inline float score_scale(const AttentionSizes& s) { return 1 / std::sqrt(static_cast<float>(s.e)); }
constexpr float hidden_score = -std::numeric_limits<float>::infinity();  // of a key that a query does not see
constexpr int64_t most_queries = 256;                                    // in a block

// Of each query of a block: the largest score m so far, the sum of all e^(x - m), and e^(m_before - m), with which what
// was summed up before the last keys is to be multiplied.
struct RunningSoftmax {
  float *largest, *total, *factor;
  int64_t queries;
};

// Scores of the next keys -> e^(x - m), and m, the sum and the factor. Inlined, so that loops of constant length are
// compiled as such.
[[gnu::always_inline]] inline void advance_softmax(const RunningSoftmax& r, const Matrix& scores, int64_t keys) {
  alignas(64) float base[most_queries];
  for (int64_t c = 0; c < r.queries / lanes; ++c) {
    Lanes largest;
    std::memcpy(&largest, r.largest + c * lanes, sizeof largest);
    for (int64_t j = 0; j < keys; ++j) {
      const Lanes x = scores.lanes_of(j)[c];
      largest = x > largest ? x : largest;
    }
    std::memcpy(base + c * lanes, &largest, sizeof largest);
  }
#pragma omp simd
  for (int64_t i = 0; i < r.queries; ++i) {
    const float before = r.largest[i];
    r.largest[i] = base[i];
    base[i] = base[i] == hidden_score ? 0 : base[i];  // as long as the query has seen no key
    r.factor[i] = fast_exp(before - base[i]);
    r.total[i] *= r.factor[i];
  }
  for (int64_t j = 0; j < keys; ++j) {
    float* const p = scores.row(j);
#pragma omp simd
    for (int64_t i = 0; i < r.queries; ++i) {
      p[i] = fast_exp(p[i] - base[i]);
      r.total[i] += p[i];
    }
  }
}

}  // namespace runnel::cpu
