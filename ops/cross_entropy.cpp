// The negative log-likelihood of a categorical distribution,
//   nll_r = logsumexp(z_r) - z_r[t_r],  dnll_r/dz_r = softmax(z_r) - onehot(t_r),
// its mean over rows r, weighted by a mask w (masked cross-entropy),
//   loss = sum_r w_r nll_r / sum_r w_r,  dloss/dz_r = w_r / sum w (softmax(z_r) - onehot(t_r)),
// and a sampler of the distribution.
//
// Softmax and loss are one pass over a row and nothing of the softmax is kept: the backward pass computes it again from
// the logits, which is cheaper than writing and reading it. The sum of the mask stays on the device.
#include "engine/check.h"
#include "ops/checks.h"
#include "ops/cpu/draw.h"
#include "ops/cpu/loops.h"
#include "ops/kernels.h"
#include "ops/ops.h"

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

#if RUNNEL_ONCE

namespace {

void check_targets(const char* op, const Tensor& logits, const Indices& targets) {
  const Shape& shape = logits.shape();
  check(shape.rank() > 0 && shape.without_last() == targets.shape(), op, ": targets ", targets.shape(),
        " do not match logits ", shape);
  if (device_of(op, logits, targets) == Device::cpu)
    for (const int32_t target : targets.to_vector())
      check(target >= 0 && target < shape[-1], op, ": target ", target, " is not in [0, ", shape[-1], ")");
}

}  // namespace

Tensor categorical_nll(const Tensor& logits, const Indices& targets) {
  check_targets("categorical_nll", logits, targets);
  const int64_t rows = targets.size(), vocabulary = logits.shape()[-1];
  Tensor nll(targets.shape(), logits.device());
  DISPATCH(logits.device(),
           cross_entropy_forward(nll.data(), logits.data(), targets.data(), nullptr, rows, vocabulary));
  return record("categorical_nll", {logits}, nll,
                [logits, targets, rows, vocabulary](const Tensor& dnll) -> std::vector<Tensor> {
                  Tensor dlogits(logits.shape(), logits.device());
                  const Tensor one = Tensor::full(Shape{}, 1, logits.device());  // dnll is the mask
                  DISPATCH(logits.device(), cross_entropy_backward(dlogits.data(), one.data(), logits.data(),
                                                                   targets.data(), dnll.data(), rows, vocabulary));
                  return {dlogits};
                });
}

Indices categorical_sample(const Tensor& logits, const Keys& keys, float temperature, const Indices& position) {
  check(logits.shape().rank() > 0 && logits.shape()[-1] > 0, "categorical_sample: logits ", logits.shape(),
        " of no categories");
  const Device device = check_draw("categorical_sample", "logits", logits, keys, temperature, position);
  Indices drawn(logits.shape().without_last(), device);
  DISPATCH(device, categorical_sample(drawn.data(), logits.data(), keys.data(), position.data(), temperature,
                                      drawn.size(), logits.shape()[-1]));
  return drawn;
}

Tensor cross_entropy(const Tensor& logits, const Indices& targets, const Tensor& mask) {
  check_targets("cross_entropy", logits, targets);
  check(!mask || mask.shape() == targets.shape(), "cross_entropy: mask ", mask.shape(), " does not match targets ",
        targets.shape());
  const int64_t rows = targets.size(), vocabulary = logits.shape()[-1];
  const Device device = device_of("cross_entropy", logits, targets, mask);

  Tensor nll(targets.shape(), device), loss(Shape{}, device);
  DISPATCH(device, cross_entropy_forward(nll.data(), logits.data(), targets.data(), mask.data(), rows, vocabulary));
  const Tensor total = sum(nll);
  const Tensor weight = mask ? sum(mask) : Tensor::full(Shape{}, static_cast<float>(rows), device);
  DISPATCH(device, divide(loss.data(), total.data(), weight.data()));
  return record("cross_entropy", {logits}, loss,
                [logits, targets, mask, weight, rows, vocabulary](const Tensor& dloss) -> std::vector<Tensor> {
                  Tensor scale(Shape{}, logits.device()), dlogits(logits.shape(), logits.device());
                  DISPATCH(logits.device(), divide(scale.data(), dloss.data(), weight.data()));
                  DISPATCH(logits.device(), cross_entropy_backward(dlogits.data(), scale.data(), logits.data(),
                                                                   targets.data(), mask.data(), rows, vocabulary));
                  return {dlogits};
                });
}

#endif

}  // namespace runnel
