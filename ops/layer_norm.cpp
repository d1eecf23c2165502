// Layer normalisation of x, or of x + dropout(a). The rule keeps the inputs and two numbers per row.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/checks.h"
#include "ops/kernels/layers.h"
#include "ops/layers.h"

namespace runnel {
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

  Tensor y(x.shape(), x.device()), kept(Shape{2, rows}, x.device());  // mean and 1 / standard deviation
  DISPATCH(x.device(), layer_norm_forward(y.data(), kept.data(), kept.data() + rows, x.data(), a.data(), gamma.data(),
                                          beta.data(), rows, d, eps, dropout));
  if (!is_recording()) return y;  // making the rule would take as long as the kernel of few rows
  return record(
      op, {x, a, gamma, beta}, y, [x, a, gamma, kept, rows, d, dropout](const Tensor& dy) -> std::vector<Tensor> {
        Tensor dx(dy.shape(), dy.device()), da, dgamma(Shape{d}, dy.device()), dbeta(Shape{d}, dy.device());
        if (a && dropout.p > 0) da = Tensor(dy.shape(), dy.device());
        DISPATCH(dy.device(),
                 layer_norm_backward(dx.data(), da.data(), dgamma.data(), dbeta.data(), dy.data(), x.data(), a.data(),
                                     gamma.data(), kept.data(), kept.data() + rows, rows, d, dropout));
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
