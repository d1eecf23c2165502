// y = dropout(activation(x w^T + b)), of one layer or of several with one input. The rule keeps x, w and, for relu, y,
// for gelu x w^T + b.
#include <algorithm>
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/checks.h"
#include "ops/kernels/linear.h"
#include "ops/linear.h"

namespace runnel {

std::vector<Tensor> linear(const Tensor& x, const std::vector<Tensor>& w, const std::vector<Tensor>& b,
                           Activation activation, Dropout dropout) {
  check(!w.empty() && b.size() == w.size(), "linear: ", w.size(), " w and ", b.size(), " b");
  check(w[0].shape().rank() == 2, "linear: w ", w[0].shape(), " is not a matrix");
  check(x.shape().rank() >= 1 && x.shape()[-1] == w[0].shape()[1], "linear: x ", x.shape(), " does not match w ",
        w[0].shape());
  const LinearSizes s{std::ssize(w), x.shape().without_last().size(), w[0].shape()[0], w[0].shape()[1]};
  for (size_t i = 0; i < w.size(); ++i) {
    check(w[i].shape() == w[0].shape(), "linear: w ", w[i].shape(), " does not match w ", w[0].shape());
    check(b[i] ? b[i].shape() == Shape{s.out} : !b[0], "linear: b ", b[i].shape(), " does not match w ", w[i].shape());
    device_of("linear", x, w[i], b[i]);
  }
  check_dropout("linear", dropout);
  const auto constants = [](std::vector<Tensor> all) {
    for (Tensor& each : all) each = detach(each);
    return all;
  };
  const Tensor weights = stacked(constants(w)), biases = b[0] ? stacked(constants(b)) : Tensor();
  Tensor y(x.shape().with_last(s.out).stacked(s.layers), x.device());
  const bool keeps_argument = activation == Activation::gelu && is_recording();
  Tensor z = keeps_argument ? Tensor(y.shape(), x.device()) : y;
  DISPATCH(x.device(),
           linear_forward(y.data(), z.data(), x.data(), weights.data(), biases.data(), s, activation, dropout));

  const auto any_wants_grad = [](const std::vector<Tensor>& all) {
    return std::any_of(all.begin(), all.end(), [](const Tensor& t) { return t.wants_grad(); });
  };
  std::vector<Tensor> inputs{x};
  inputs.insert(inputs.end(), w.begin(), w.end());
  inputs.insert(inputs.end(), b.begin(), b.end());
  const Tensor kept = activation == Activation::none ? Tensor() : z;
  return record(
      "linear", inputs, y.parts(),
      [x, weights, kept, wants_w = any_wants_grad(w), wants_b = any_wants_grad(b), s, activation, dropout](
          std::vector<Tensor> dy, const Tensor& so_far) -> std::vector<Tensor> {
        for (Tensor& g : dy)
          if (!g) g = Tensor::full(x.shape().with_last(s.out), 0, x.device());
        const Tensor g = stacked(dy);
        Tensor dx = so_far, dw, db;
        if (x.wants_grad() && !dx) dx = Tensor(x.shape(), x.device());
        if (wants_w) dw = Tensor(weights.shape(), x.device());
        if (wants_b) db = Tensor(Shape{s.layers, s.out}, x.device());
        DISPATCH(x.device(), linear_backward(dx.data(), dw.data(), db.data(), g.data(), x.data(), weights.data(),
                                             kept.data(), s, activation, dropout, bool(so_far)));
        std::vector<Tensor> gradients{dx};
        for (const Tensor& stack : {dw, db}) {
          const std::vector<Tensor> parts = stack ? stack.parts() : std::vector<Tensor>(static_cast<size_t>(s.layers));
          gradients.insert(gradients.end(), parts.begin(), parts.end());
        }
        return gradients;
      });
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b, Activation activation, Dropout dropout) {
  return linear(x, std::vector{w}, std::vector{b}, activation, dropout)[0];
}

}  // namespace runnel
