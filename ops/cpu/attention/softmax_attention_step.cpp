// One position of causal softmax attention, with a cache of keys and values: softmax_attention.cpp has the formulas.
#include <algorithm>

#include "ops/cpu/attention/online_softmax.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/softmax_attention.h"

namespace runnel {

// The keys are kept as columns: scores of neighbouring positions are then neighbours.
void cpu::softmax_attention_step(float* y, float* k_cache, float* v_cache, const float* q, const float* k,
                                 const float* v, const int32_t* position, AttentionSizes s) {
  const int64_t e = s.e, m = s.m, capacity = s.key_length;
  const float scale = score_scale(s);
  const int64_t last = position[0] % capacity, count = std::min<int64_t>(position[0] + 1, capacity);
  const ThreadScratch weights(count);
  parallel_for(s.sequences(), s.sequences() * count * (e + m) >= 1 << 16, [&](int64_t n) {
    float *const p = weights.this_thread(), *const out = y + n * m;
    float *const keys = k_cache + n * e * capacity, *const values = v_cache + n * capacity * m;
    clear(p, count);
    for (int64_t c = 0; c < e; ++c) {
      const float factor = scale * q[n * e + c];
      keys[c * capacity + last] = k[n * e + c];
      add_scaled(p, factor, keys + c * capacity, count);
    }
    copy_numbers(values + last * m, v + n * m, m);
    const float highest = map_max(count, p);
    Lanes sums{};
    for (int64_t j = 0; j < count; j += lanes) {
      const Lanes weight = exp(load(p + j, count - j, splat(minus_infinity)) - highest);
      sums += weight;
      store(p + j, weight, count - j);
    }
    const float inverse = 1 / lane_sum(sums);
    clear(out, m);
    for (int64_t j = 0; j < count; ++j) add_scaled(out, p[j] * inverse, values + j * m, m);
  });
}

}  // namespace runnel
