// The kernels of ops/shapes.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "ops/kernels/dispatch.h"
#include "ops/kernels/strided_loop.h"

namespace runnel {

// y at offsets(r).a + j step_a = x at offsets(r).b + j step_b
KERNEL(strided_copy(float* y, const float* x, StridedLoop loop))

// Windows of images [batch,height,width,channels], with `padding` zeros around them, every `stride` positions.
struct WindowSizes {
  int64_t batch, height, width, channels, rows, columns, window_height, window_width, stride, padding;
};
// y [batch,rows,columns, window_height,window_width,channels]
KERNEL(unfold_forward(float* y, const float* x, WindowSizes sizes))
KERNEL(unfold_backward(float* dx, const float* dy, WindowSizes sizes))

// rows[index[0],:] = row [n]. Partial write: all other rows are preserved.
KERNEL(put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n))
// y[i] = x[i] + by
KERNEL(shift(int32_t* y, const int32_t* x, int64_t by, int64_t n))
// y [batch,length,row] = x, and 0 at the positions j >= lengths[b]
KERNEL(zero_padding(float* y, const float* x, const int32_t* lengths, int64_t batch, int64_t length, int64_t row))
// position[0] += 1; where that is `period`, 0
KERNEL(advance(int32_t* position, int64_t period))

}  // namespace runnel
