// Shared by the samplers: a draw from a categorical distribution.
#pragma once
#include "ops/cpu/loops.h"

namespace runnel {
namespace {

// One of n categories from softmax(logits / temperature), by inverting its cumulative sum at u, in (0, 1). Weights are
// added one by one, as on CUDA, so that both draw the same.
inline int64_t draw_category(const float* logits, int64_t n, float temperature, float u) {
  const float highest = map_max(n, logits);
  // Adds the weights until the sum reaches `end`, or the last. Returns how many were added before, and the sum.
  struct Sum {
    int64_t count;
    float total;
  };
  const auto add_until = [=](float end) -> Sum {
    float total = 0;
    for (int64_t i = 0; i < n; i += lanes) {
      const Lanes weights = exp((load(logits + i, n - i) - highest) / temperature);
      for (int64_t j = 0; j < lanes && i + j < n; ++j) {
        total += weights[j];
        if (total >= end) return {i + j, total};
      }
    }
    return {n - 1, total};
  };
  const float total = add_until(std::numeric_limits<float>::infinity()).total;
  return add_until(u * total).count;
}

}  // namespace
}  // namespace runnel
