// The negative log-likelihood of a categorical distribution, its mean over rows, and a sampler. The rule keeps the
// logits; the sum of the mask stays on the device.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/checks.h"
#include "ops/kernels/losses.h"
#include "ops/losses.h"
#include "ops/reductions.h"

namespace runnel {
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
  refuse_gradient("categorical_sample", "logits", logits);
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
  refuse_gradient("cross_entropy", "mask", mask);
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

}  // namespace runnel
