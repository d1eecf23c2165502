// Draws by a thread: of a normal number, and of a category for samplers.
#pragma once
#include "cuda/launch.h"

namespace runnel::cuda {

// Key::normal, on the device; cospi, because cos keeps a table for large arguments on a stack.
__device__ inline float draw_normal(Key key, int64_t i) {
  const auto at = static_cast<uint64_t>(2 * i);
  const double radius = sqrt(-2 * log(static_cast<double>(key.uniform(at))));
  return static_cast<float>(radius * cospi(2.0 * key.uniform(at + 1)));
}

// One of n categories from softmax(logits / temperature), by inverting its cumulative sum at u, in (0, 1): in the order
// of ops/cpu/draw.h, so that both draw the same.
__device__ inline int64_t draw_category(const float* logits, int64_t n, float temperature, float u) {
  float largest = logits[0];
  for (int64_t i = 1; i < n; ++i) largest = largest < logits[i] ? logits[i] : largest;
  const auto weight = [=](int64_t i) { return expf((logits[i] - largest) / temperature); };
  float total = 0;
  for (int64_t i = 0; i < n; ++i) total += weight(i);
  int64_t chosen = 0;
  for (float sum = weight(0); sum < u * total && chosen < n - 1; sum += weight(chosen)) ++chosen;
  return chosen;
}

}  // namespace runnel::cuda
