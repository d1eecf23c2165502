// Short causal convolutions of each channel by itself. The rule keeps the inputs and computes z again.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/causal_convolution.h"
#include "ops/checks.h"
#include "ops/kernels/causal_convolution.h"

namespace runnel {
namespace {

ConvolutionSizes checked(const char* op, const Tensor& x, const Tensor& weight, const Tensor& before, bool silu) {
  const Shape &s = x.shape(), &w = weight.shape();
  check(s.rank() == 3, op, ": x ", s, " is not [B,L,D]");
  check(w.rank() == 2 && w[0] == s[2] && w[1] >= 1 && w[1] <= most_convolution_taps, op, ": the weight ", w,
        " is not [", s[2], ",K] with K from 1 to ", most_convolution_taps);
  check(!before || before.shape() == Shape{s[0], w[1] - 1, s[2]}, op, ": before ", before.shape(), " is not [", s[0],
        ",", w[1] - 1, ",", s[2], "]");
  device_of(op, x, weight, before);
  return {s[0], s[1], s[2], w[1], silu};
}

}  // namespace

Tensor causal_convolution(const Tensor& x, const Tensor& weight, CausalConvolution options, const Tensor& before) {
  const ConvolutionSizes sizes = checked("causal_convolution", x, weight, before, options.silu);
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), causal_convolution_forward(y.data(), x.data(), weight.data(), before.data(), sizes));
  return record("causal_convolution", {x, weight, before}, y,
                [x, weight, before, sizes](const Tensor& dy) -> std::vector<Tensor> {
                  Tensor dx(dy.shape(), dy.device()), dweight(weight.shape(), dy.device()), dbefore;
                  if (before.wants_grad()) dbefore = Tensor(before.shape(), dy.device());
                  DISPATCH(dy.device(),
                           causal_convolution_backward(dx.data(), dweight.data(), dbefore.data(), dy.data(), x.data(),
                                                       weight.data(), before.data(), sizes));
                  return {dx, dweight, dbefore};
                });
}

Tensor causal_convolution_step(const Tensor& x, const Tensor& weight, CausalConvolution options, Tensor& before) {
  constexpr const char* op = "causal_convolution_step";
  const ConvolutionSizes sizes = checked(op, x, weight, before, options.silu);
  check(sizes.length == 1, op, ": x ", x.shape(), " is not [B,1,D]");
  check(bool(before), op, ": before is empty");
  refuse_gradient(op, "x", x);
  refuse_gradient(op, "weight", weight);
  refuse_gradient(op, "before", before);
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), causal_convolution_step(y.data(), before.data(), x.data(), weight.data(), sizes));
  return y;
}

}  // namespace runnel
