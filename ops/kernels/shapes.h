// The kernels of ops/shapes.h. engine/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "engine/dispatch.h"

namespace runnel {

// y[r,:] = a[r,:] followed by b[r % period,:]: a is [rows,m], b [rows_b,n] with rows_b >= period, y [rows,m+n]. The
// rows of db are sums over r, and 0 from `period` on.
KERNEL(concat_forward(float* y, const float* a, const float* b, int64_t rows, int64_t period, int64_t m, int64_t n))
KERNEL(concat_backward(float* da, float* db, const float* dy, int64_t rows, int64_t period, int64_t rows_b, int64_t m,
                       int64_t n))

// y[b,:] = the first n numbers of x[b,:], with rows of `row` in x.
KERNEL(first_positions(float* y, const float* x, int64_t batch, int64_t n, int64_t row))
// y[b,:] = first[b,:], of n numbers, and then x[b,n:], with rows of `row` in x and y. first or x may be null: zeros.
KERNEL(with_first_positions(float* y, const float* x, const float* first, int64_t batch, int64_t n, int64_t row))

// y[i,:] = x[rows[i],:], with rows of n.
KERNEL(gather_rows(float* y, const float* x, const int32_t* rows, int64_t count, int64_t n))
// rows[index[0],:] = row [n]. Partial write: all other rows are preserved.
KERNEL(put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n))
// y[i] = x[i] + by
KERNEL(shift(int32_t* y, const int32_t* x, int64_t by, int64_t n))
// position[0] += 1; where that is `period`, 0
KERNEL(advance(int32_t* position, int64_t period))

}  // namespace runnel
