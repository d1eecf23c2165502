// For rules: axes, broadcasting, and how a loop over the elements of a shape walks through tensors of other layouts.
#pragma once
#include <array>
#include <vector>

#include "engine/check.h"
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

// The axis counted from the first; -1 is the last. Throws Error if x of this shape has no such axis.
inline int checked_axis(const char* op, const Shape& shape, int axis) {
  check(axis < shape.rank() && axis >= -shape.rank(), op, ": x ", shape, " has no axis ", axis);
  return axis < 0 ? axis + shape.rank() : axis;
}

// Whether broadcasting makes `shape` of `from`.
inline bool repeats_to(const Shape& from, const Shape& shape) {
  const int leading = shape.rank() - from.rank();
  bool fits = leading >= 0;
  for (int axis = 0; fits && axis < from.rank(); ++axis) fits = from[axis] == 1 || from[axis] == shape[axis + leading];
  return fits;
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
