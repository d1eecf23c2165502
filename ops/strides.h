// For rules: how a loop over the elements of a shape walks through tensors of other layouts.
#pragma once
#include <array>
#include <vector>

#include "engine/tensor.h"
#include "ops/kernels/strided_loop.h"

namespace runnel {

using Strides = std::array<int64_t, Shape::max_rank>;  // elements from one index of an axis to the next

// Of a tensor of this shape, row-major; 0 along an axis of size 1, so that the tensor is repeated where the loop has
// more. With `rank` axes: the shape's are the last, the leading ones have 0.
inline Strides strides_of(const Shape& shape, int rank) {
  Strides strides{};
  int64_t step = 1;
  for (int axis = shape.rank() - 1, at = rank - 1; axis >= 0; step *= shape[axis--], --at)
    strides[static_cast<size_t>(at)] = shape[axis] == 1 ? 0 : step;
  return strides;
}

// A loop over `shape`, with as few axes as possible: neighbours become one where both operands go on evenly.
inline StridedLoop strided_loop(const Shape& shape, const Strides& a, const Strides& b) {
  StridedLoop s{};
  s.n = s.rows = 1;
  const auto end_axis = [&s] {  // the inner axis found so far becomes the last of the outer ones
    if (s.n == 1) return;
    s.sizes[s.rank] = s.n;
    s.a[s.rank] = s.step_a;
    s.b[s.rank++] = s.step_b;
    s.rows *= s.n;
  };
  for (int i = 0; i < shape.rank(); ++i) {
    const auto axis = static_cast<size_t>(i);
    const int64_t size = shape[i];
    if (size == 1) continue;
    const bool goes_on = s.step_a == a[axis] * size && s.step_b == b[axis] * size;
    if (!goes_on || s.n == 1) end_axis();
    s.n = goes_on && s.n != 1 ? s.n * size : size;
    s.step_a = a[axis];
    s.step_b = b[axis];
  }
  return s;
}

}  // namespace runnel
