// Causal linear attention without feature map and normaliser: Algorithm 1 of the paper, as printed.
//
//   y_i  = q_i^T S_i,                    S_i = sum_{j<=i} k_j v_j^T      (the numerator of eq. 9)
//   dq_i = S_i dy_i                                                      (eq. 13)
//   dk_i = R_i v_i,   dv_i = R_i^T k_i,  R_i = sum_{j>=i} q_j dy_j^T     (eq. 14, 15)
//
// The state S [E,M] is the only memory besides inputs and outputs: backward walks the sequence twice, once from each
// end, instead of keeping L states. linear_attention computes the same, fused and in chunks; this is its definition.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/linear_attention.h"

namespace runnel {
namespace {

// S += a b^T
void add_outer(float* s, const float* a, const float* b, int64_t e, int64_t m) {
  for (int64_t i = 0; i < e; ++i) add_scaled(s + i * m, a[i], b, m);
}

// y^T = x^T S
void left_product(float* y, const float* x, const float* s, int64_t e, int64_t m) {
  clear(y, m);
  for (int64_t i = 0; i < e; ++i) add_scaled(y, x[i], s + i * m, m);
}

// y = S x
void right_product(float* y, const float* s, const float* x, int64_t e, int64_t m) {
  for (int64_t i = 0; i < e; ++i) y[i] = dot(s + i * m, x, m);
}

}  // namespace

void cpu::causal_product_forward(float* y, const float* q, const float* k, const float* v, AttentionSizes sizes) {
  const int64_t length = sizes.length, heads = sizes.heads, e = sizes.e, m = sizes.m;
  const ThreadScratch states(e * m);
#pragma omp parallel for schedule(static) if (sizes.sequences() * length * e * m >= parallel_from_products)
  for (int64_t n = 0; n < sizes.sequences(); ++n) {
    float* const s = states.this_thread();
    clear(s, e * m);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t at = (n / heads * length + i) * heads + n % heads;
      add_outer(s, k + at * e, v + at * m, e, m);
      left_product(y + at * m, q + at * e, s, e, m);
    }
  }
}

void cpu::causal_product_backward(float* dq, float* dk, float* dv, const float* dy, const float* q, const float* k,
                                  const float* v, AttentionSizes sizes) {
  const int64_t length = sizes.length, heads = sizes.heads, e = sizes.e, m = sizes.m;
  const ThreadScratch states(e * m);
#pragma omp parallel for schedule(static) if (sizes.sequences() * length * e * m >= parallel_from_products)
  for (int64_t n = 0; n < sizes.sequences(); ++n) {
    float* const s = states.this_thread();
    clear(s, e * m);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t at = (n / heads * length + i) * heads + n % heads;
      add_outer(s, k + at * e, v + at * m, e, m);
      right_product(dq + at * e, s, dy + at * m, e, m);  // eq. 13
    }
    float* const r = s;
    clear(r, e * m);
    for (int64_t i = length - 1; i >= 0; --i) {
      const int64_t at = (n / heads * length + i) * heads + n % heads;
      add_outer(r, q + at * e, dy + at * m, e, m);
      left_product(dv + at * m, k + at * e, r, e, m);   // eq. 15
      right_product(dk + at * e, r, v + at * m, e, m);  // eq. 14
    }
  }
}

}  // namespace runnel
