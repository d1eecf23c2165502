// One position of causal linear attention (eq. 18-20), for decoding. Reading and writing the state is nearly all the
// work.
#include "ops/cpu/attention/linear_attention.h"

#include "ops/kernels/linear_attention.h"

namespace runnel {
namespace {

// Columns of S += k v^T and of y = q^T S / normaliser, at most `width` vectors of them, whose sums stay in registers. y
// is that of S before its numbers are rounded. Rows of S are `stride` numbers apart.
template <int width, class Number>
RUNNEL_INLINE inline void advance_columns(float* y, Number* s, const float* q, const float* k, const float* v,
                                          int64_t e, int64_t stride, float inverse, int64_t columns = width * lanes) {
  Lanes sums[width] = {}, values[width];
  for (int w = 0; w < width; ++w) values[w] = load(v + w * lanes, columns - w * lanes);
  for (int64_t i = 0; i < e; ++i)
    for (int w = 0; w < width; ++w) {
      Number* const numbers = s + i * stride + w * lanes;
      const Lanes next = load(numbers, columns - w * lanes) + k[i] * values[w];
      sums[w] += q[i] * next;
      store(numbers, next, columns - w * lanes);
    }
  for (int w = 0; w < width; ++w) store(y + w * lanes, sums[w] * inverse, columns - w * lanes);
}

// One sequence; q and k are features.
template <class Number>
void advance_state(float* y, Number* s, const float* q, const float* k, const float* v, int64_t e, int64_t m,
                   int64_t stride, float inverse) {
  int64_t j = 0;
  for (; j + 4 * lanes <= m; j += 4 * lanes) advance_columns<4>(y + j, s + j, q, k, v + j, e, stride, inverse);
  for (; j + 2 * lanes <= m; j += 2 * lanes) advance_columns<2>(y + j, s + j, q, k, v + j, e, stride, inverse);
  for (; j + lanes <= m; j += lanes) advance_columns<1>(y + j, s + j, q, k, v + j, e, stride, inverse);
  if (j < m) advance_columns<1>(y + j, s + j, q, k, v + j, e, stride, inverse, m - j);
}

}  // namespace

void cpu::linear_attention_step(float* y, float* s, float* z, const float* q, const float* k, const float* v,
                                AttentionSizes sizes, FeatureMap feature_map, Precision of_s) {
  const int64_t e = sizes.e, m = sizes.m, row = state_row(m, of_s);
  const ThreadScratch features(2 * padded(e));
  with_map(feature_map, [&](auto phi) {
    parallel_for(sizes.sequences(), sizes.sequences() * e * m >= 1 << 16, [&](int64_t n) {
      float *const qs = features.this_thread(), *const ks = qs + padded(e);
      map(qs, e, phi, q + n * e);
      map(ks, e, phi, k + n * e);
      accumulate(z + n * e, ks, e);
      const float normaliser = map_sum(
          e, [](Lanes p, Lanes r) RUNNEL_INLINE { return p * r; }, qs, z + n * e);
      const float inverse = 1 / (normaliser + normaliser_eps);
      float* const own = s + n * e * row;
      if (of_s == Precision::bf16)
        advance_state(y + n * m, reinterpret_cast<uint16_t*>(own), qs, ks, v + n * m, e, m, 2 * row, inverse);
      else
        advance_state(y + n * m, own, qs, ks, v + n * m, e, m, row, inverse);
    });
  });
}

}  // namespace runnel
