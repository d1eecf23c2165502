// y = dropout(activation(x w^T + b)): a product by cuBLAS, then one pass over y for all that follows it.
//
// Backward, with g = dL/d(x w^T + b), which is dy where neither activation nor dropout stand in between,
//   dx = g w,   dw = g^T x,   db = sum of g's rows.
// relu's mask is read off y. Where relu let through, dropout either scaled by 1 / (1 - p) or left a zero: so y > 0 is
// the mask of both, and nothing is drawn again.
#include "cuda/cublas.h"
#include "cuda/map.h"
#include "cuda/temporary.h"
#include "ops/kernels.h"

namespace runnel::cuda {
namespace {

// Launch: over_fours(n). Owns: y[i], which holds the product. b may be null. Shared: none.
__global__ void linear_forward_kernel(float* y, const float* b, int64_t n, int64_t out, bool relu, Mask mask) {
  const auto finish = [relu](float yi, float bj, float factor) {
    const float sum = yi + bj;
    return (relu && !(sum > 0) ? 0 : sum) * factor;
  };
  map(y, n, finish, Elements{y}, RepeatedRow{b, out}, DropoutFactors{mask});
}

// Launch: over_fours(n). Owns: g[i]. Shared: none.
__global__ void linear_backward_kernel(float* g, const float* dy, const float* y, int64_t n, float kept) {
  map(
      g, n, [kept](float dyi, float yi) { return yi > 0 ? kept * dyi : 0; }, Elements{dy}, Elements{y});
}

}  // namespace

void linear_forward(float* y, const float* x, const float* w, const float* b, int64_t rows, int64_t out, int64_t in,
                    Activation activation, Dropout dropout) {
  product(y, x, w, rows, out, in, false, true);
  const bool relu = activation == Activation::relu;
  if (!b && !relu && dropout.p == 0) return;
  launch("linear_forward", linear_forward_kernel, over_fours(rows * out), y, b, rows * out, out, relu, Mask(dropout));
}

void linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w, const float* y,
                     int64_t rows, int64_t out, int64_t in, Activation activation, Dropout dropout) {
  const bool relu = activation == Activation::relu, masked = relu || dropout.p > 0;
  const int64_t n = rows * out;
  const Temporary<float> masked_dy(masked ? n : 0);
  const float* const g = masked ? masked_dy.data() : dy;
  if (relu)
    launch("linear_backward", linear_backward_kernel, over_fours(n), masked_dy.data(), dy, y, n, Mask(dropout).kept);
  else if (masked)
    cuda::dropout(masked_dy.data(), dy, n, dropout);
  if (dx) product(dx, g, w, rows, in, out, false, false);
  if (dw) product(dw, g, x, out, in, rows, true, false);
  if (db) add_bias_backward(db, g, rows, out);
}

}  // namespace runnel::cuda
