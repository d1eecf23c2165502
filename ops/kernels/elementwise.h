// The kernels of ops/elementwise.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "ops/kernels/dispatch.h"
#include "ops/kernels/strided_loop.h"

namespace runnel {

// The elementwise functions of formulas.h. `saved` is x or y, as stands there.
enum class Function {
#define FUNCTION(name, value, saved, derivative) name,
#include "ops/kernels/formulas.h"
#undef FUNCTION
};
KERNEL(function_forward(float* y, const float* x, Function f, int64_t n))
KERNEL(function_backward(float* dx, const float* dy, const float* saved, Function f, int64_t n))

enum class Binary {
#define BINARY(name, value, da, db) name,
#include "ops/kernels/formulas.h"
#undef BINARY
};
// y[r,j] = f(a, b); y is contiguous, steps are 0 or 1.
KERNEL(binary_forward(float* y, const float* a, const float* b, Binary f, StridedLoop loop))
// d[r,j] = dy[r,j] times the derivative by a, or by b: not yet summed over the broadcast axes.
KERNEL(binary_backward(float* d, const float* dy, const float* a, const float* b, Binary f, StridedLoop loop,
                       bool by_b))

// y = s x
KERNEL(scale(float* y, const float* x, float s, int64_t n))

}  // namespace runnel
