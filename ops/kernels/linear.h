// The kernels of ops/linear.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "engine/random.h"
#include "ops/kernels/dispatch.h"
#include "ops/numerics.h"
#include "ops/types.h"

namespace runnel {

// c[batch,m,n] = op(a) op(b), where op transposes if its flag is set: a is [batch,m,k] or [batch,k,m], or one such
// matrix for all if `same_a`; b is [batch,k,n] or [batch,n,k].
KERNEL(matmul(float* c, const float* a, const float* b, int64_t batch, int64_t m, int64_t n, int64_t k,
              bool transpose_a, bool transpose_b, bool same_a))

// Of several linear layers with one input.
struct LinearSizes {
  int64_t layers, rows, out, in;
  int64_t outputs() const { return rows * out; }  // of a layer
  int64_t weights() const { return out * in; }
  int64_t products() const { return layers * rows * out * in; }
};

// z[i,rows,out] = x[rows,in] w[i,out,in]^T + b[i,out] and y = dropout(activation(z)) for i < s.layers. b may be null; z
// is y, or for gelu may be memory of its own.
KERNEL(linear_forward(float* y, float* z, const float* x, const float* w, const float* b, LinearSizes s,
                      Activation activation, Dropout dropout))
// Any of dx, dw, db may be null. `kept` is y for relu, which is positive exactly where the gradient passes, z for gelu,
// else not read. dx += instead of dx = if `add_dx`.
KERNEL(linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                       const float* kept, LinearSizes s, Activation activation, Dropout dropout, bool add_dx))

// bfloat16 numbers are the upper halves of floats.
CPU_KERNEL(round_to_bf16(uint16_t* to, const float* from, int64_t n))

// For few rows: w [out,in] -> panels of float32, bfloat16 or int8, whose order is that of the instruction set; and
// y[rows,out] = activation(x[rows,in] w^T + b), none or relu, of several layers with the same x. In int8, w[o,:] is
// s[o] times integers from -127 to 127, s[o] = max |w[o,:]| / 127, and x[r,:] is t[r] times integers of at most 16
// bits.
CPU_KERNEL(pack_linear(float* panels, const float* w, int64_t out, int64_t in, Precision precision))
constexpr int64_t int8_unit = 32;  // `in` is padded to a multiple: two vectors of the largest instruction set
// Floats of a column: one, two or four weights in each.
constexpr int64_t packed_depth(int64_t in, Precision precision) {
  return precision == Precision::bf16   ? (in + 1) / 2
         : precision == Precision::int8 ? (in + int8_unit - 1) / int8_unit * (int8_unit / 4)
                                        : in;
}
constexpr int64_t packed_linear_size(int64_t out, int64_t in, Precision precision) {  // of the panels, in floats
  constexpr int64_t max_columns = 32;
  const int64_t columns = (out + max_columns - 1) / max_columns * max_columns;
  return columns * (packed_depth(in, precision) + (precision == Precision::int8 ? 1 : 0));  // s, too
}
struct PackedLayer {
  float* y;
  const float *panels, *b;
  int64_t out;
};
CPU_KERNEL(packed_linear(const PackedLayer* layers, int64_t count, const float* x, int64_t rows, int64_t in,
                         Precision precision, Activation activation))

}  // namespace runnel
