// Elementwise functions of one number, and of two with broadcasting. What they compute, and their derivatives, are the
// formulas of formulas.h.
#include <algorithm>
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/elementwise.h"
#include "ops/kernels/elementwise.h"
#include "ops/reductions.h"
#include "ops/strides.h"

namespace runnel {
namespace {

bool saves_output(Function f) {
  switch (f) {
#define FUNCTION(name, value, saved, derivative) \
  case Function::name:                           \
    return #saved[0] == 'y';
#include "ops/kernels/formulas.h"
#undef FUNCTION
  }
  return false;
}

Tensor function(const char* op, const Tensor& x, Function f) {
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), function_forward(y.data(), x.data(), f, x.size()));
  return record(op, {x}, y, [saved = saves_output(f) ? y : x, f](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(dy.shape(), dy.device());
    DISPATCH(dy.device(), function_backward(dx.data(), dy.data(), saved.data(), f, dy.size()));
    return {dx};
  });
}

// The shape of which a and b are broadcast: axes are aligned at the last one, and one of size 1, or a missing leading
// one, is repeated.
Shape broadcast_shape(const char* op, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<int64_t> sizes(static_cast<size_t>(rank));
  for (int i = 1; i <= rank; ++i) {
    const int64_t in_a = i <= a.rank() ? a[-i] : 1, in_b = i <= b.rank() ? b[-i] : 1;
    check(in_a == in_b || in_a == 1 || in_b == 1, op, ": b ", b, " does not match a ", a,
          ": aligned at the last axis, sizes must be equal or 1");
    sizes[static_cast<size_t>(rank - i)] = in_a == 1 ? in_b : in_a;
  }
  return Shape(sizes);
}

Tensor binary(const char* op, const Tensor& a, const Tensor& b, Binary f) {
  const Device device = device_of(op, a, b);
  const Shape shape = broadcast_shape(op, a.shape(), b.shape());
  const StridedLoop loop =
      strided_loop(shape, strides_of(a.shape(), shape.rank()), strides_of(b.shape(), shape.rank()));
  Tensor y(shape, device);
  DISPATCH(device, binary_forward(y.data(), a.data(), b.data(), f, loop));
  // A sum's rule needs the operands' shapes only.
  const bool is_sum = f == Binary::add;
  const Tensor kept_a = is_sum ? Tensor() : a, kept_b = is_sum ? Tensor() : b;
  return record(op, {a, b}, y,
                [=, shape_a = a.shape(), shape_b = b.shape(), wants_a = a.wants_grad(),
                 wants_b = b.wants_grad()](const Tensor& dy) -> std::vector<Tensor> {
                  const auto gradient = [&](bool by_b) {
                    if (is_sum) return sum_to(dy, by_b ? shape_b : shape_a);
                    Tensor d(dy.shape(), device);
                    DISPATCH(device, binary_backward(d.data(), dy.data(), kept_a.data(), kept_b.data(), f, loop, by_b));
                    return sum_to(d, by_b ? shape_b : shape_a);
                  };
                  return {wants_a ? gradient(false) : Tensor(), wants_b ? gradient(true) : Tensor()};
                });
}

Tensor number(float s, const Tensor& beside) { return Tensor::full({}, s, beside.device()); }

}  // namespace

Tensor exp(const Tensor& x) { return function("exp", x, Function::exp); }
Tensor log(const Tensor& x) { return function("log", x, Function::log); }
Tensor sqrt(const Tensor& x) { return function("sqrt", x, Function::sqrt); }
Tensor square(const Tensor& x) { return function("square", x, Function::square); }
Tensor abs(const Tensor& x) { return function("abs", x, Function::abs); }
Tensor tanh(const Tensor& x) { return function("tanh", x, Function::tanh); }
Tensor sigmoid(const Tensor& x) { return function("sigmoid", x, Function::sigmoid); }
Tensor silu(const Tensor& x) { return function("silu", x, Function::silu); }
Tensor softplus(const Tensor& x) { return function("softplus", x, Function::softplus); }
Tensor relu(const Tensor& x) { return function("relu", x, Function::relu); }
Tensor gelu(const Tensor& x) { return function("gelu", x, Function::gelu); }
Tensor elu_plus_one(const Tensor& x) { return function("elu_plus_one", x, Function::elu_plus_one); }

Tensor scale(const Tensor& x, float s) {
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), scale(y.data(), x.data(), s, x.size()));
  return record("scale", {x}, y, [s](const Tensor& dy) -> std::vector<Tensor> { return {scale(dy, s)}; });
}

Tensor add(const Tensor& a, const Tensor& b) { return binary("add", a, b, Binary::add); }
Tensor subtract(const Tensor& a, const Tensor& b) { return binary("subtract", a, b, Binary::subtract); }
Tensor multiply(const Tensor& a, const Tensor& b) { return binary("multiply", a, b, Binary::multiply); }
Tensor divide(const Tensor& a, const Tensor& b) { return binary("divide", a, b, Binary::divide); }
Tensor maximum(const Tensor& a, const Tensor& b) { return binary("maximum", a, b, Binary::maximum); }

Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  refuse_gradient("where", "mask", mask);
  return add(binary("where", mask, a, Binary::where_true), binary("where", mask, b, Binary::where_false));
}

Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return subtract(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return multiply(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return divide(a, b); }
Tensor operator-(const Tensor& x) { return scale(x, -1); }
Tensor operator+(const Tensor& a, float b) { return add(a, number(b, a)); }
Tensor operator+(float a, const Tensor& b) { return add(number(a, b), b); }
Tensor operator-(const Tensor& a, float b) { return subtract(a, number(b, a)); }
Tensor operator-(float a, const Tensor& b) { return subtract(number(a, b), b); }
Tensor operator*(const Tensor& a, float b) { return scale(a, b); }
Tensor operator*(float a, const Tensor& b) { return scale(b, a); }
Tensor operator/(const Tensor& a, float b) { return divide(a, number(b, a)); }
Tensor operator/(float a, const Tensor& b) { return divide(number(a, b), b); }

}  // namespace runnel
