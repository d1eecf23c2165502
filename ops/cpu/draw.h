// Shared by the samplers: a draw from a categorical distribution, and the checks of their arguments.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/check.h"
#include "engine/tensor.h"

namespace runnel {

// One of n categories from softmax(logits / temperature), by inverting its cumulative sum at u, in (0, 1).
inline int64_t draw_category(const float* logits, int64_t n, float temperature, float u) {
  const float largest = *std::max_element(logits, logits + n);
  const auto weight = [&](int64_t i) { return std::exp((logits[i] - largest) / temperature); };
  float total = 0;
  for (int64_t i = 0; i < n; ++i) total += weight(i);
  int64_t chosen = 0;
  for (float sum = weight(0); sum < u * total && chosen < n - 1; sum += weight(chosen)) ++chosen;
  return chosen;
}

// Throws unless there is one key for each row of what is drawn from, `name` in messages. Returns their device.
inline Device check_draw(const char* op, const char* name, const Tensor& from, const Keys& keys, float temperature,
                         const Indices& position) {
  const Device device = device_of(op, from, keys, position);
  check(keys.size() * from.shape()[-1] == from.size(), op, ": ", keys.size(), " keys do not match ", name, " ",
        from.shape());
  check(!position || position.size() == 1, op, ": position ", position.shape(), " is not one number");
  check(temperature > 0, op, ": the temperature ", temperature, " is not positive");
  return device;
}

}  // namespace runnel
