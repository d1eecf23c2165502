// Elementwise ops, the bias that is added to every row, and sums. The rules of relu and elu_plus_one keep only the
// output, of which their derivatives are functions.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/elementwise.h"
#include "ops/kernels/elementwise.h"
#include "ops/kernels/sums.h"
#include "ops/sums.h"

namespace runnel {

Tensor add(const Tensor& a, const Tensor& b) {
  device_of("add", a, b);
  check(a.shape() == b.shape(), "add: b ", b.shape(), " does not match a ", a.shape());
  Tensor y(a.shape(), a.device());
  DISPATCH(a.device(), add(y.data(), a.data(), b.data(), y.size()));
  return record("add", {a, b}, y, [](const Tensor& dy) -> std::vector<Tensor> { return {dy, dy}; });
}

Tensor scale(const Tensor& x, float s) {
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), scale(y.data(), x.data(), s, x.size()));
  return record("scale", {x}, y, [s](const Tensor& dy) -> std::vector<Tensor> { return {scale(dy, s)}; });
}

Tensor add_bias(const Tensor& x, const Tensor& b) {
  device_of("add_bias", x, b);
  check(x.shape().rank() >= 1 && b.shape() == Shape{x.shape()[-1]}, "add_bias: b ", b.shape(),
        " does not match the last axis of x ", x.shape());
  Tensor y(x.shape(), x.device());
  const int64_t n = b.size(), rows = n ? x.size() / n : 0;
  DISPATCH(x.device(), add_bias_forward(y.data(), x.data(), b.data(), rows, n));
  return record("add_bias", {x, b}, y, [rows, n, wants_db = b.wants_grad()](const Tensor& dy) -> std::vector<Tensor> {
    if (!wants_db) return {dy, {}};
    Tensor db(Shape{n}, dy.device());
    DISPATCH(dy.device(), add_bias_backward(db.data(), dy.data(), 1, rows, n));
    return {dy, db};
  });
}

Tensor relu(const Tensor& x) {
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), relu_forward(y.data(), x.data(), x.size()));
  return record("relu", {x}, y, [y](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(dy.shape(), dy.device());
    DISPATCH(dy.device(), relu_backward(dx.data(), dy.data(), y.data(), dy.size()));
    return {dx};
  });
}

Tensor gelu(const Tensor& x) {
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), gelu_forward(y.data(), x.data(), x.size()));
  return record("gelu", {x}, y, [x](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(dy.shape(), dy.device());
    DISPATCH(dy.device(), gelu_backward(dx.data(), dy.data(), x.data(), dy.size()));
    return {dx};
  });
}

Tensor elu_plus_one(const Tensor& x) {
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), elu_plus_one_forward(y.data(), x.data(), x.size()));
  return record("elu_plus_one", {x}, y, [y](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(dy.shape(), dy.device());
    DISPATCH(dy.device(), elu_plus_one_backward(dx.data(), dy.data(), y.data(), dy.size()));
    return {dx};
  });
}

Tensor scale(const Tensor& x, const Tensor& factors) {
  check(x.shape() == factors.shape(), "scale: the factors ", factors.shape(), " do not match x ", x.shape());
  const Device device = device_of("scale", x, factors);
  Tensor y(x.shape(), device);
  DISPATCH(device, multiply(y.data(), x.data(), factors.data(), x.size()));
  return record("scale", {x}, y, [factors](const Tensor& dy) -> std::vector<Tensor> { return {scale(dy, factors)}; });
}

Tensor sum(const Tensor& x) {
  Tensor total(Shape{}, x.device());
  DISPATCH(x.device(), sum(total.data(), x.data(), x.size()));
  return record("sum", {x}, total, [shape = x.shape()](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(shape, dy.device());
    DISPATCH(dy.device(), fill(dx.data(), dy.data(), dx.size()));
    return {dx};
  });
}

}  // namespace runnel
