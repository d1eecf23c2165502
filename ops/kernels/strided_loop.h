// How kernels walk through tensors of different layouts.
#pragma once
#include <cstdint>

namespace runnel {

// rows x n elements; two operands have element j of row r at offsets(r).a + j step_a and offsets(r).b + j step_b. The
// rows are the elements of outer axes, over which the operands have strides. Where one is broadcast, its step or stride
// is 0.
struct StridedLoop {
  int rank;  // number of outer axes
  int64_t sizes[6], a[6], b[6];
  int64_t rows, n, step_a, step_b;
  struct Offsets {
    int64_t a, b;
  };
  constexpr Offsets offsets(int64_t row) const {
    Offsets sum{};
    for (int axis = rank - 1; axis >= 0; row /= sizes[axis--]) {
      const int64_t place = row % sizes[axis];
      sum.a += place * a[axis];
      sum.b += place * b[axis];
    }
    return sum;
  }
};

}  // namespace runnel
