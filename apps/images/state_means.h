// What linear attention's state shows: S [H,E,M] and Z [H,E] (eq. 18, 19) of one sequence -> |S[e,m] / Z[e]| [H,E,M],
// the mean of the values that feature e has seen, weighted by phi(k)[e]; 0 where it has seen none.
#pragma once
#include <cmath>
#include <vector>

#include "ops/linear_attention.h"

namespace runnel {

inline std::vector<float> state_means(const AttentionState& state) {
  std::vector<float> means = state.s.to_vector();
  const std::vector<float> seen = state.z.to_vector();
  const size_t values = means.size() / seen.size();
  for (size_t i = 0; i < means.size(); ++i) {
    const float all = seen[i / values];
    means[i] = all > 0 ? std::abs(means[i] / all) : 0;
  }
  return means;
}

}  // namespace runnel
