// How kernels walk through tensors of different layouts.
#pragma once
#include <cstdint>

namespace runnel {

// rows x n elements; two operands have element j of row r at offset_a(r) + j step_a and offset_b(r) + j step_b. The
// rows are the elements of outer axes, over which the operands have strides. Where one is broadcast, its step or stride
// is 0.
struct StridedLoop {
  int rank;  // number of outer axes
  int64_t sizes[6], a[6], b[6];
  int64_t rows, n, step_a, step_b;
  constexpr int64_t offset_a(int64_t row) const { return offset(row, a); }
  constexpr int64_t offset_b(int64_t row) const { return offset(row, b); }
  constexpr int64_t offset(int64_t row, const int64_t* strides) const {
    int64_t sum = 0;
    for (int axis = rank - 1; axis >= 0; row /= sizes[axis--]) sum += row % sizes[axis] * strides[axis];
    return sum;
  }
};

}  // namespace runnel
