// Elementwise ops, the bias that is added to every row, sums, and their gradient rules.
//
// These kernels are memory-bound. The rules of relu and elu_plus_one need only the output: the derivative of relu is 1
// where y > 0, and that of elu(x) + 1 is 1 where y > 1 and e^x = y elsewhere, which is min(y, 1).
#include <algorithm>
#include <cmath>

#include "engine/check.h"
#include "ops/cpu/math.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

constexpr int64_t parallel = 1 << 15;  // below so many elements, waking the threads costs more than they save

// Phi(x), the standard normal distribution function.
float normal_cdf(float x) { return 0.5f * std::erfc(-0.70710678f * x); }

}  // namespace

void cpu::add(float* y, const float* a, const float* b, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n >= parallel)
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void cpu::scale(float* y, const float* x, float s, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n >= parallel)
  for (int64_t i = 0; i < n; ++i) y[i] = s * x[i];
}

void cpu::add_bias_forward(float* y, const float* x, const float* b, int64_t rows, int64_t n) {
#pragma omp parallel for schedule(static) if (rows * n >= parallel)
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) y[r * n + j] = x[r * n + j] + b[j];
  }
}

// Each thread owns some columns and adds down the rows: the same order whatever the number of threads.
void cpu::add_bias_backward(float* db, const float* dy, int64_t rows, int64_t n) {
  constexpr int64_t width = 64;  // columns at a time: four cache lines of every row, sums in registers
#pragma omp parallel for schedule(static) if (rows * n >= parallel)
  for (int64_t first = 0; first < n; first += width) {
    const int64_t count = std::min(width, n - first);
    float sums[width] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const float* const row = dy + r * n + first;
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) sums[j] += row[j];
    }
    std::copy_n(sums, count, db + first);
  }
}

void cpu::relu_forward(float* y, const float* x, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n >= parallel)
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0 ? 0 : x[i];  // NaN stays NaN
}

void cpu::relu_backward(float* dx, const float* dy, const float* y, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n >= parallel)
  for (int64_t i = 0; i < n; ++i) dx[i] = y[i] > 0 ? dy[i] : 0;
}

void cpu::gelu_forward(float* y, const float* x, int64_t n) {
#pragma omp parallel for schedule(static) if (n >= parallel)
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * normal_cdf(x[i]);
}

void cpu::gelu_backward(float* dx, const float* dy, const float* x, int64_t n) {
#pragma omp parallel for schedule(static) if (n >= parallel)
  for (int64_t i = 0; i < n; ++i) {
    const float density = 0.39894228f * fast_exp(-0.5f * x[i] * x[i]);
    dx[i] = dy[i] * (normal_cdf(x[i]) + x[i] * density);
  }
}

void cpu::elu_plus_one_forward(float* y, const float* x, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n >= parallel)
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] + 1 : fast_exp(x[i]);
}

void cpu::elu_plus_one_backward(float* dx, const float* dy, const float* y, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n >= parallel)
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * (y[i] < 1 ? y[i] : 1);
}

void cpu::sum(float* total, const float* x, int64_t n) {
  double s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t i = 0; i < n; ++i) s += static_cast<double>(x[i]);
  *total = static_cast<float>(s);
}

void cpu::fill(float* y, const float* s, int64_t n) { std::fill_n(y, n, *s); }

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
    DISPATCH(dy.device(), add_bias_backward(db.data(), dy.data(), rows, n));
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

Tensor reshape(const Tensor& x, Shape shape) {
  check(shape.size() == x.size(), "reshape: x ", x.shape(), " does not have as many elements as ", shape);
  return record("reshape", {x}, x.viewed_as(shape),
                [from = x.shape()](const Tensor& dy) -> std::vector<Tensor> { return {dy.viewed_as(from)}; });
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
