// Layer normalisation of s = x + dropout(a), fused with that sum because both are memory-bound.
//
//   z = (s - mean) rstd,  y = z gamma + beta,  rstd = 1 / sqrt(var + eps), per row of D
//
// With g = dy gamma, the gradient loses the two directions that normalisation fixes, the constant and z itself:
//   ds = rstd (g - <g> - z <g z>),  dgamma = sum dy z,  dbeta = sum dy,   <.> being the mean over the row.
// dx = ds and da = dropout(ds), with the same mask. The forward pass keeps two numbers per row; s is computed again.
//
// Each row stays in the cache while it is read several times. Sums over rows are taken of a fixed number of parts,
// which are then added in their order: the same bytes with any number of threads.
#include <cmath>

#include "ops/cpu/dropout.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/layers.h"

namespace runnel {
namespace {

// x + dropout(a) for row r: x itself without a, else computed into `into`.
const float* add_row(float* into, const float* x, const float* a, int64_t r, int64_t d, const Dropout& dropout) {
  if (!a) return x + r * d;
  const float* dropped = a + r * d;
  if (dropout.p > 0) {
    apply_dropout(into, dropped, r * d, d, dropout);
    dropped = into;
  }
  map(
      into, d, [](Lanes p, Lanes q) RUNNEL_INLINE { return p + q; }, x + r * d, dropped);
  return into;
}

void forward_row(float* y, float* mean, float* rstd, const float* s, const float* gamma, const float* beta, int64_t d,
                 float eps) {
  const float m = map_sum(
                      d, [](Lanes v) RUNNEL_INLINE { return v; }, s) /
                  static_cast<float>(d);
  Lanes squares{};
  for (int64_t j = 0; j < d; j += lanes) {
    const Lanes difference = load(s + j, d - j, splat(m)) - m;
    squares += difference * difference;
  }
  const float scale = 1 / std::sqrt(lane_sum(squares) / static_cast<float>(d) + eps);
  map(
      y, d, [=](Lanes v, Lanes g, Lanes b) RUNNEL_INLINE { return (v - m) * scale * g + b; }, s, gamma, beta);
  *mean = m;
  *rstd = scale;
}

// Adds to dgamma and dbeta. z is memory for a row.
void backward_row(float* dx, float* z, float* dgamma, float* dbeta, const float* dy, const float* s, const float* gamma,
                  float mean, float rstd, int64_t d) {
  Lanes sum_g{}, sum_gz{};
  for (int64_t j = 0; j < d; j += lanes) {
    const int64_t count = d - j;
    const Lanes g = load(dy + j, count), normal = (load(s + j, count) - mean) * rstd,
                scaled = g * load(gamma + j, count);
    sum_g += scaled;
    sum_gz += scaled * normal;
    store(dgamma + j, load(dgamma + j, count) + g * normal, count);
    store(dbeta + j, load(dbeta + j, count) + g, count);
    store(z + j, normal, count);
  }
  const float mean_g = lane_sum(sum_g) / static_cast<float>(d), mean_gz = lane_sum(sum_gz) / static_cast<float>(d);
  map(
      dx, d,
      [=](Lanes g, Lanes weight, Lanes normal)
          RUNNEL_INLINE { return rstd * (g * weight - mean_g - normal * mean_gz); },
      dy, gamma, z);
}

}  // namespace

void cpu::layer_norm_forward(float* y, float* mean, float* rstd, const float* x, const float* a, const float* gamma,
                             const float* beta, int64_t rows, int64_t d, float eps, Dropout dropout) {
  const ThreadScratch row(d);
  parallel_rows(rows, d, [&](int64_t r) {
    forward_row(y + r * d, mean + r, rstd + r, add_row(row.this_thread(), x, a, r, d, dropout), gamma, beta, d, eps);
  });
}

void cpu::layer_norm_backward(float* dx, float* da, float* dgamma, float* dbeta, const float* dy, const float* x,
                              const float* a, const float* gamma, const float* mean, const float* rstd, int64_t rows,
                              int64_t d, Dropout dropout) {
  const RowParts parts(rows, 32, 1);
  const Scratch sums(parts.count * 2 * d);
  const ThreadScratch two_rows(2 * d);
  parallel_for(parts.count, rows * d >= parallel_from, [&](int64_t part) {
    float *const own = sums.data() + part * 2 * d, *const s_row = two_rows.this_thread();
    clear(own, 2 * d);
    for (int64_t r = parts.begin(part); r < parts.end(part); ++r) {
      const float* const s = add_row(s_row, x, a, r, d, dropout);
      backward_row(dx + r * d, s_row + d, own, own + d, dy + r * d, s, gamma, mean[r], rstd[r], d);
      if (da) apply_dropout(da + r * d, dx + r * d, r * d, d, dropout);
    }
  });
  clear(dgamma, d);
  clear(dbeta, d);
  for (int64_t part = 0; part < parts.count; ++part) {
    accumulate(dgamma, sums.data() + part * 2 * d, d);
    accumulate(dbeta, sums.data() + part * 2 * d + d, d);
  }
}

}  // namespace runnel
