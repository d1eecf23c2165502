// Layer normalisation of s = x + dropout(a), fused with that sum because both are memory-bound.
//
//   z = (s - mean) rstd,  y = z gamma + beta,  rstd = 1 / sqrt(var + eps), per row of D
//
// With g = dy gamma, the gradient loses the two directions that normalisation fixes, the constant and z itself:
//   ds = rstd (g - <g> - z <g z>),  dgamma = sum dy z,  dbeta = sum dy,   <.> being the mean over the row.
// dx = ds and da = dropout(ds), with the same mask. The forward pass keeps two numbers per row; s is computed again.
//
// s is written to a buffer of one row that stays in the cache: y's row is not there yet.
#include <omp.h>

#include <cmath>

#include "engine/check.h"
#include "ops/cpu/math.h"
#include "ops/cpu/parallel.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

constexpr int64_t parallel = 1 << 15;  // elements

// x + dropout(a) for row r: x itself without a, else computed into `into`.
const float* add_row(float* into, const float* x, const float* a, int64_t r, int64_t d, const Dropout& dropout) {
  if (!a) return x + r * d;
  const float* dropped = a + r * d;
  if (dropout.p > 0) {
    apply_dropout(into, dropped, r * d, d, dropout);
    dropped = into;
  }
#pragma omp simd
  for (int64_t j = 0; j < d; ++j) into[j] = x[r * d + j] + dropped[j];
  return into;
}

void forward_rows(float* y, float* mean, float* rstd, const float* x, const float* a, const float* gamma,
                  const float* beta, int64_t begin, int64_t end, int64_t d, float eps, const Dropout& dropout) {
  Tensor row(Shape{d});
  for (int64_t r = begin; r < end; ++r) {
    float* const out = y + r * d;
    const float* const s = add_row(row.data(), x, a, r, d, dropout);
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < d; ++j) sum += s[j];
    const float m = sum / static_cast<float>(d);
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < d; ++j) squares += (s[j] - m) * (s[j] - m);
    const float scale = 1 / std::sqrt(squares / static_cast<float>(d) + eps);
#pragma omp simd
    for (int64_t j = 0; j < d; ++j) out[j] = (s[j] - m) * scale * gamma[j] + beta[j];
    mean[r] = m;
    rstd[r] = scale;
  }
}

// Adds to dgamma and dbeta.
void backward_rows(float* dx, float* da, float* dgamma, float* dbeta, const float* dy, const float* x, const float* a,
                   const float* gamma, const float* mean, const float* rstd, int64_t begin, int64_t end, int64_t d,
                   const Dropout& dropout) {
  Tensor z_row(Shape{d});
  float* const row = z_row.data();
  for (int64_t r = begin; r < end; ++r) {
    float* const out = dx + r * d;
    const float* const s = add_row(row, x, a, r, d, dropout);
    const float* const g = dy + r * d;
    float sum_g = 0, sum_gz = 0;
#pragma omp simd reduction(+ : sum_g, sum_gz)
    for (int64_t j = 0; j < d; ++j) {
      const float z = (s[j] - mean[r]) * rstd[r];
      sum_g += g[j] * gamma[j];
      sum_gz += g[j] * gamma[j] * z;
      dgamma[j] += g[j] * z;
      dbeta[j] += g[j];
      row[j] = z;
    }
    const float mean_g = sum_g / static_cast<float>(d), mean_gz = sum_gz / static_cast<float>(d);
#pragma omp simd
    for (int64_t j = 0; j < d; ++j) out[j] = rstd[r] * (g[j] * gamma[j] - mean_g - row[j] * mean_gz);
    if (da) apply_dropout(da + r * d, out, r * d, d, dropout);
  }
}

}  // namespace

void cpu::layer_norm_forward(float* y, float* mean, float* rstd, const float* x, const float* a, const float* gamma,
                             const float* beta, int64_t rows, int64_t d, float eps, Dropout dropout) {
  parallel_shares(rows, rows * d >= parallel, [&](int64_t begin, int64_t end, int64_t) {
    forward_rows(y, mean, rstd, x, a, gamma, beta, begin, end, d, eps, dropout);
  });
}

void cpu::layer_norm_backward(float* dx, float* da, float* dgamma, float* dbeta, const float* dy, const float* x,
                              const float* a, const float* gamma, const float* mean, const float* rstd, int64_t rows,
                              int64_t d, Dropout dropout) {
  // Each thread sums over its own rows; the sums are added in the order of the threads.
  Tensor partial = Tensor::full(Shape{omp_get_max_threads(), 2, d}, 0);
  const int64_t parts = parallel_shares(rows, rows * d >= parallel, [&](int64_t begin, int64_t end, int64_t thread) {
    float* const part = partial.data() + 2 * d * thread;
    backward_rows(dx, da, part, part + d, dy, x, a, gamma, mean, rstd, begin, end, d, dropout);
  });
  for (int64_t j = 0; j < d; ++j) {
    dgamma[j] = dbeta[j] = 0;
    for (int64_t t = 0; t < parts; ++t) {
      dgamma[j] += partial.data()[2 * d * t + j];
      dbeta[j] += partial.data()[2 * d * t + d + j];
    }
  }
}

namespace {

// Both ops: without a, `a` is empty and so is its gradient.
Tensor normalize(const char* op, const Tensor& x, const Tensor& a, const Tensor& gamma, const Tensor& beta,
                 Dropout dropout) {
  constexpr float eps = 1e-5f;
  check(x.shape().rank() >= 1 && x.shape()[-1] >= 1, op, ": x ", x.shape(), " has no last axis to normalise over");
  const int64_t d = x.shape()[-1], rows = x.size() / d;
  check(gamma.shape() == Shape{d}, op, ": gamma ", gamma.shape(), " does not match the last axis of x ", x.shape());
  check(beta.shape() == Shape{d}, op, ": beta ", beta.shape(), " does not match the last axis of x ", x.shape());
  check(!a || a.shape() == x.shape(), op, ": a ", a.shape(), " does not match x ", x.shape());
  check_dropout(op, dropout);
  device_of(op, x, a, gamma, beta);

  Tensor y(x.shape(), x.device()), mean(Shape{rows}, x.device()), rstd(Shape{rows}, x.device());
  DISPATCH(x.device(), layer_norm_forward(y.data(), mean.data(), rstd.data(), x.data(), a.data(), gamma.data(),
                                          beta.data(), rows, d, eps, dropout));
  return record(op, {x, a, gamma, beta}, y,
                [x, a, gamma, mean, rstd, rows, d, dropout](const Tensor& dy) -> std::vector<Tensor> {
                  Tensor dx(dy.shape(), dy.device()), da, dgamma(Shape{d}, dy.device()), dbeta(Shape{d}, dy.device());
                  if (a && dropout.p > 0) da = Tensor(dy.shape(), dy.device());
                  DISPATCH(dy.device(),
                           layer_norm_backward(dx.data(), da.data(), dgamma.data(), dbeta.data(), dy.data(), x.data(),
                                               a.data(), gamma.data(), mean.data(), rstd.data(), rows, d, dropout));
                  return {dx, a && !da ? dx : da, dgamma, dbeta};
                });
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  return normalize("layer_norm", x, {}, gamma, beta, {});
}

Tensor add_layer_norm(const Tensor& x, const Tensor& a, const Tensor& gamma, const Tensor& beta, Dropout dropout) {
  check(bool(a), "add_layer_norm: a is empty");
  return normalize("add_layer_norm", x, a, gamma, beta, dropout);
}

}  // namespace runnel
