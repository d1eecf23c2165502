// The negative log-likelihood of a categorical distribution,
//   nll_r = logsumexp(z_r) - z_r[t_r],  dnll_r/dz_r = softmax(z_r) - onehot(t_r),
// its mean over rows r, weighted by a mask w (masked cross-entropy),
//   loss = sum_r w_r nll_r / sum_r w_r,  dloss/dz_r = w_r / sum w (softmax(z_r) - onehot(t_r)),
// and a sampler of the distribution.
//
// Softmax and loss are one pass over a row and nothing of the softmax is kept: the backward pass computes it again from
// the logits, which is cheaper than writing and reading it. The sum of the mask stays on the device.
#include "ops/cpu/draw.h"
#include "ops/cpu/loops.h"
#include "ops/kernels/losses.h"

namespace runnel {
namespace {

constexpr int64_t parallel_from_logits = 4096;  // an exponential costs more than an addition

}  // namespace

void cpu::cross_entropy_forward(float* nll, const float* logits, const int32_t* targets, const float* mask,
                                int64_t rows, int64_t vocabulary) {
  parallel_for(rows, rows * vocabulary > parallel_from_logits, [=](int64_t r) {
    const float* const z = logits + r * vocabulary;
    const float highest = map_max(vocabulary, z);
    Lanes sums{};
    for (int64_t i = 0; i < vocabulary; i += lanes)
      sums += exp(load(z + i, vocabulary - i, splat(minus_infinity)) - highest);
    nll[r] = (mask ? mask[r] : 1) * (log(splat(lane_sum(sums)))[0] + (highest - z[targets[r]]));
  });
}

void cpu::cross_entropy_backward(float* dlogits, const float* scale, const float* logits, const int32_t* targets,
                                 const float* mask, int64_t rows, int64_t vocabulary) {
  parallel_for(rows, rows * vocabulary > parallel_from_logits, [=](int64_t r) {
    const float* const z = logits + r * vocabulary;
    float* const dz = dlogits + r * vocabulary;
    const float weight = (mask ? mask[r] : 1) * scale[0], highest = map_max(vocabulary, z);
    Lanes sums{};
    for (int64_t i = 0; i < vocabulary; i += lanes) {
      const Lanes e = exp(load(z + i, vocabulary - i, splat(minus_infinity)) - highest);
      sums += e;
      store(dz + i, e, vocabulary - i);
    }
    const float share = weight / lane_sum(sums);
    map(
        dz, vocabulary, [share](Lanes e) RUNNEL_INLINE { return share * e; }, dz);
    dz[targets[r]] -= weight;
  });
}

void cpu::categorical_sample(int32_t* drawn, const float* logits, const Key* keys, const int32_t* position,
                             float temperature, int64_t rows, int64_t vocabulary) {
  parallel_for(rows, rows * vocabulary > parallel_from_logits, [=](int64_t r) {
    const Key key = position ? keys[r].fold(static_cast<uint64_t>(position[0])) : keys[r];
    drawn[r] = static_cast<int32_t>(draw_category(logits + r * vocabulary, vocabulary, temperature, key.uniform(0)));
  });
}

void cpu::divide(float* y, const float* a, const float* b) { y[0] = a[0] / b[0]; }

}  // namespace runnel
