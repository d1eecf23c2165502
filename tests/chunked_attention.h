// The chunked form of causal linear attention in its plainest loops: the step between Algorithm 1, one position at a
// time (causal_product.cpp), and the fused op that models use. docs/attention.md explains it and shows this code;
// test_docs.cpp keeps the two the same and checks the results.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace runnel::test {

// y_i = sum_{j<=i} (x_i . a_j) b_j for one head; if reverse, the sum is over j >= i. x, a [L,E], b, y [L,M].
inline void chunked_scan(float* y, const float* x, const float* a, const float* b, int64_t length, int64_t e, int64_t m,
                         int64_t chunk, bool reverse) {
  std::vector<float> s(static_cast<size_t>(e * m), 0);  // S = sum of a_j b_j^T over the chunks already visited
  const int64_t chunks = (length + chunk - 1) / chunk;
  for (int64_t n = 0; n < chunks; ++n) {
    const int64_t begin = (reverse ? chunks - 1 - n : n) * chunk, end = std::min(begin + chunk, length);
    for (int64_t i = begin; i < end; ++i) {
      float* const yi = y + i * m;
      // Y = X S: everything outside the chunk acts through the state.
      std::fill_n(yi, m, 0.0f);
      for (int64_t r = 0; r < e; ++r)
        for (int64_t c = 0; c < m; ++c) yi[c] += x[i * e + r] * s[static_cast<size_t>(r * m + c)];
      // Y += mask(X A^T) B: inside the chunk, attention as it is defined.
      for (int64_t j = reverse ? i : begin; j < (reverse ? end : i + 1); ++j) {
        float weight = 0;
        for (int64_t r = 0; r < e; ++r) weight += x[i * e + r] * a[j * e + r];
        for (int64_t c = 0; c < m; ++c) yi[c] += weight * b[j * m + c];
      }
    }
    // S += A^T B: from here on the chunk acts through the state, too.
    for (int64_t j = begin; j < end; ++j)
      for (int64_t r = 0; r < e; ++r)
        for (int64_t c = 0; c < m; ++c) s[static_cast<size_t>(r * m + c)] += a[j * e + r] * b[j * m + c];
  }
}

}  // namespace runnel::test
