// One position of causal linear attention on the CPU (eq. 18-20), for decoding. Reading and writing the state is nearly
// all the work.
#include "ops/attention/linear_attention.h"

namespace runnel {
namespace {

// Columns of S += k v^T and of y = q^T S / normaliser, for `width` vectors of columns, whose sums stay in registers.
// Rows of S are m apart.
template <int width>
void advance_columns(float* y, float* s, const float* q, const float* k, const float* v, int64_t e, int64_t m,
                     float inverse) {
  Lanes sums[width] = {}, values[width];
  for (int w = 0; w < width; ++w) values[w] = load(v + w * lanes);
  for (int64_t i = 0; i < e; ++i)
    for (int w = 0; w < width; ++w) {
      const Lanes next = load(s + i * m + w * lanes) + k[i] * values[w];
      sums[w] += q[i] * next;
      store(s + i * m + w * lanes, next);
    }
  for (int w = 0; w < width; ++w) {
    sums[w] *= inverse;
    store(y + w * lanes, sums[w]);
  }
}

// One sequence; q and k are features.
void advance_state(float* y, float* s, const float* q, const float* k, const float* v, int64_t e, int64_t m,
                   float inverse) {
  int64_t j = 0;
  for (; j + 4 * lanes <= m; j += 4 * lanes) advance_columns<4>(y + j, s + j, q, k, v + j, e, m, inverse);
  for (; j + 2 * lanes <= m; j += 2 * lanes) advance_columns<2>(y + j, s + j, q, k, v + j, e, m, inverse);
  for (; j + lanes <= m; j += lanes) advance_columns<1>(y + j, s + j, q, k, v + j, e, m, inverse);
  for (; j < m; ++j) {
    float sum = 0;
    for (int64_t i = 0; i < e; ++i) sum += q[i] * (s[i * m + j] += k[i] * v[j]);
    y[j] = sum * inverse;
  }
}

}  // namespace

void cpu::linear_attention_step(float* y, float* s, float* z, const float* q, const float* k, const float* v,
                                AttentionSizes sizes, FeatureMap feature_map) {
  const int64_t e = sizes.e, m = sizes.m;
  const ThreadScratch features(2 * padded(e));
  with_map(feature_map, [&](auto phi) {
    parallel_for(sizes.sequences(), sizes.sequences() * e * m >= 1 << 16, [&](int64_t n) {
      float *const qs = features.own(), *const ks = qs + padded(e);
      map(qs, e, phi, q + n * e);
      map(ks, e, phi, k + n * e);
      accumulate(z + n * e, ks, e);
      const float normaliser = map_sum(
          e, [](Lanes p, Lanes r) RUNNEL_INLINE { return p * r; }, qs, z + n * e);
      advance_state(y + n * m, s + n * e * m, qs, ks, v + n * m, e, m, 1 / (normaliser + normaliser_eps));
    });
  });
}

}  // namespace runnel
