// Elementwise kernels, the bias that is added to every row, and sums. They are memory-bound.
//
// The gradients of relu and elu_plus_one need only the output: the derivative of relu is 1 where y > 0, and that of
// elu(x) + 1 is 1 where y > 1 and e^x = y elsewhere, which is min(y, 1).
#include "ops/kernels/elementwise.h"

#include <array>

#include "ops/cpu/loops.h"
#include "ops/kernels/sums.h"

namespace runnel {

void cpu::add(float* y, const float* a, const float* b, int64_t n) {
  parallel_map(
      y, n, [](Lanes p, Lanes q) RUNNEL_INLINE { return p + q; }, a, b);
}

void cpu::add_to_bf16(float* y, const float* a, const float* b, int64_t n) {
  const auto rounded = [](Lanes x) RUNNEL_INLINE {
    std::array<uint16_t, lanes> upper;
    store(upper.data(), x);
    return load(upper.data());
  };
  if (!b) return parallel_map(y, n, rounded, a);
  parallel_map(
      y, n, [=](Lanes p, Lanes q) RUNNEL_INLINE { return rounded(p + q); }, a, b);
}

void cpu::scale(float* y, const float* x, float s, int64_t n) {
  parallel_map(
      y, n, [s](Lanes v) RUNNEL_INLINE { return s * v; }, x);
}

void cpu::multiply(float* y, const float* a, const float* b, int64_t n) {
  parallel_map(
      y, n, [](Lanes p, Lanes q) RUNNEL_INLINE { return p * q; }, a, b);
}

void cpu::add_bias_forward(float* y, const float* x, const float* b, int64_t rows, int64_t n) {
  parallel_rows(rows, n, [=](int64_t r) {
    map(
        y + r * n, n, [](Lanes p, Lanes q) RUNNEL_INLINE { return p + q; }, x + r * n, b);
  });
}

// Each thread owns some columns and adds down the rows: the same order whatever the number of threads.
void cpu::add_bias_backward(float* db, const float* dy, int64_t layers, int64_t rows, int64_t n) {
  constexpr int64_t width = 64;  // columns at a time: four cache lines of every row
  for (int64_t l = 0; l < layers; ++l)
    parallel_pieces(n, width, rows * n >= parallel_from, [=](int64_t first, int64_t count) {
      float sums[width] = {};
      for (int64_t r = 0; r < rows; ++r) accumulate(sums, dy + (l * rows + r) * n + first, count);
      std::memcpy(db + l * n + first, sums, static_cast<size_t>(count) * sizeof(float));
    });
}

void cpu::relu_forward(float* y, const float* x, int64_t n) {
  parallel_map(
      y, n, [](Lanes v) RUNNEL_INLINE { return v < 0 ? Lanes{} : v; }, x);  // NaN stays NaN
}

void cpu::relu_backward(float* dx, const float* dy, const float* y, int64_t n) {
  parallel_map(
      dx, n, [](Lanes g, Lanes v) RUNNEL_INLINE { return v > 0 ? g : Lanes{}; }, dy, y);
}

void cpu::gelu_forward(float* y, const float* x, int64_t n) {
  parallel_map(
      y, n, [](Lanes v) RUNNEL_INLINE { return v * normal_cdf(v); }, x);
}

void cpu::gelu_backward(float* dx, const float* dy, const float* x, int64_t n) {
  parallel_map(
      dx, n,
      [](Lanes g, Lanes v) RUNNEL_INLINE {
        const Lanes density = 0.39894228f * exp(-0.5f * v * v);
        return g * (normal_cdf(v) + v * density);
      },
      dy, x);
}

void cpu::elu_plus_one_forward(float* y, const float* x, int64_t n) {
  parallel_map(
      y, n, [](Lanes v) RUNNEL_INLINE { return v > 0 ? v + 1 : exp(v); }, x);
}

void cpu::elu_plus_one_backward(float* dx, const float* dy, const float* y, int64_t n) {
  parallel_map(
      dx, n, [](Lanes g, Lanes v) RUNNEL_INLINE { return g * (v < 1 ? v : splat(1)); }, dy, y);
}

void cpu::sum(float* total, const float* x, int64_t n) {
  DoubleLanes sums{};
  int64_t i = 0;
  for (; i + double_lanes <= n; i += double_lanes) sums += load_double(x + i);
  double s = lane_sum(sums);
  for (; i < n; ++i) s += static_cast<double>(x[i]);
  *total = static_cast<float>(s);
}

void cpu::fill(float* y, const float* s, int64_t n) {
  const Lanes all = splat(*s);
  parallel_map(y, n, [all]() RUNNEL_INLINE { return all; });
}

}  // namespace runnel
