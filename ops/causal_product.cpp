// Causal linear attention without feature map and normaliser: Algorithm 1 of the paper, as printed.
//
//   y_i  = q_i^T S_i,                    S_i = sum_{j<=i} k_j v_j^T      (the numerator of eq. 9)
//   dq_i = S_i dy_i                                                      (eq. 13)
//   dk_i = R_i v_i,   dv_i = R_i^T k_i,  R_i = sum_{j>=i} q_j dy_j^T     (eq. 14, 15)
//
// The state S [E,M] is the only memory besides inputs and outputs: backward walks the sequence twice, once from each
// end, instead of keeping L states. linear_attention computes the same, fused and in chunks; this is its definition.
#include <algorithm>
#include <vector>

#include "engine/check.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

// S += a b^T
void add_outer(float* s, const float* a, const float* b, int64_t e, int64_t m) {
  for (int64_t i = 0; i < e; ++i)
    for (int64_t j = 0; j < m; ++j) s[i * m + j] += a[i] * b[j];
}

// y^T = x^T S
void left_product(float* y, const float* x, const float* s, int64_t e, int64_t m) {
  std::fill_n(y, m, 0.0f);
  for (int64_t i = 0; i < e; ++i)
    for (int64_t j = 0; j < m; ++j) y[j] += x[i] * s[i * m + j];
}

// y = S x
void right_product(float* y, const float* s, const float* x, int64_t e, int64_t m) {
  for (int64_t i = 0; i < e; ++i) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < m; ++j) total += s[i * m + j] * x[j];
    y[i] = total;
  }
}

}  // namespace

void cpu::causal_product_forward(float* y, const float* q, const float* k, const float* v, int64_t batch,
                                 int64_t length, int64_t heads, int64_t e, int64_t m) {
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<float> s(static_cast<size_t>(e * m), 0);
      for (int64_t i = 0; i < length; ++i) {
        const int64_t at = (b * length + i) * heads + h;
        add_outer(s.data(), k + at * e, v + at * m, e, m);
        left_product(y + at * m, q + at * e, s.data(), e, m);
      }
    }
}

void cpu::causal_product_backward(float* dq, float* dk, float* dv, const float* dy, const float* q, const float* k,
                                  const float* v, int64_t batch, int64_t length, int64_t heads, int64_t e, int64_t m) {
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<float> s(static_cast<size_t>(e * m), 0);
      for (int64_t i = 0; i < length; ++i) {
        const int64_t at = (b * length + i) * heads + h;
        add_outer(s.data(), k + at * e, v + at * m, e, m);
        right_product(dq + at * e, s.data(), dy + at * m, e, m);  // eq. 13
      }
      std::vector<float> r(static_cast<size_t>(e * m), 0);
      for (int64_t i = length - 1; i >= 0; --i) {
        const int64_t at = (b * length + i) * heads + h;
        add_outer(r.data(), q + at * e, dy + at * m, e, m);
        left_product(dv + at * m, k + at * e, r.data(), e, m);   // eq. 15
        right_product(dk + at * e, r.data(), v + at * m, e, m);  // eq. 14
      }
    }
}

Tensor causal_product(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Shape shape = q.shape();
  device_of("causal_product", q, k, v);
  check(shape.rank() == 4, "causal_product: q ", shape, " is not [B,L,H,E]");
  check(k.shape() == shape, "causal_product: k ", k.shape(), " does not match q ", shape);
  check(v.shape().rank() == 4 && v.shape() == shape.with_last(v.shape()[-1]), "causal_product: v ", v.shape(),
        " does not match q ", shape);
  const int64_t batch = shape[0], length = shape[1], heads = shape[2], e = shape[3], m = v.shape()[3];
  Tensor y(v.shape(), v.device());
  DISPATCH(q.device(), causal_product_forward(y.data(), q.data(), k.data(), v.data(), batch, length, heads, e, m));
  return record("causal_product", {q, k, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dq(q.shape(), q.device()), dk(k.shape(), k.device()), dv(v.shape(), v.device());
    DISPATCH(q.device(), causal_product_backward(dq.data(), dk.data(), dv.data(), dy.data(), q.data(), k.data(),
                                                 v.data(), batch, length, heads, e, m));
    return {dq, dk, dv};
  });
}

}  // namespace runnel
