// y = dropout(activation(x w^T + b)), one pass over the rows of x.
//
// A thread takes a panel of rows at a time, small enough that its products stay in the core's cache, and does all there
// is to do with it: forward, the product and then bias, activation and dropout in place; backward, with
// g = dL/d(x w^T + b) of the panel,
//   dx = g w,   dw += g^T x,   db += sum of g's rows.
// Each thread adds up its own dw and db; they are summed at the end, in the order of the threads.
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/check.h"
#include "ops/gemm.h"
#include "ops/math.h"
#include "ops/ops.h"

namespace runnel {
namespace {

constexpr int64_t panel_rows = 128;

// y = activation(y + b)
void finish(float* y, const float* b, int64_t rows, int64_t n, Activation activation) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float sum = y[r * n + j] + (b ? b[j] : 0);
      y[r * n + j] = activation == Activation::relu && !(sum > 0) ? 0 : sum;
    }
}

}  // namespace

void cpu::linear_forward(float* y, const float* x, const float* w, const float* b, int64_t rows, int64_t out, int64_t in,
                         Activation activation, Dropout dropout) {
  if (rows == 0 || out == 0) return;
  const PackedMatrix wt(w, in, out, true);
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < rows; first += panel_rows) {
    const int64_t count = std::min(panel_rows, rows - first);
    float* panel = y + first * out;
    wt.multiply(panel, Operand(x + first * in, count * in), count);
    finish(panel, b, count, out, activation);
    if (dropout.p > 0) apply_dropout(panel, panel, first * out, count * out, dropout);
  }
}

void cpu::linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                          const float* y, int64_t rows, int64_t out, int64_t in, Activation activation,
                          Dropout dropout) {
  const PackedMatrix packed(w, out, in, false);
  const int64_t threads = omp_get_max_threads();
  Tensor dw_parts(Shape{dw ? threads : 0, out, in}), db_parts(Shape{db ? threads : 0, out});
  const float kept = 1 / (1 - dropout.p);

#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    const int64_t thread = omp_get_thread_num();
    float* dw_part = dw ? dw_parts.data() + thread * out * in : nullptr;
    float* db_part = db ? db_parts.data() + thread * out : nullptr;
    if (dw) std::fill_n(dw_part, out * in, 0.0f);
    if (db) std::fill_n(db_part, out, 0.0f);
    Tensor g_panel(Shape{panel_rows, out});
#pragma omp for schedule(static)
    for (int64_t first = 0; first < rows; first += panel_rows) {
      const int64_t count = std::min(panel_rows, rows - first), n = count * out;
      const float* g = dy + first * out;
      if (activation == Activation::relu) {
        const float* y_panel = y + first * out;
        float* to = g_panel.data();
        for (int64_t i = 0; i < n; ++i) to[i] = y_panel[i] > 0 ? kept * g[i] : 0;
        g = g_panel.data();
      } else if (dropout.p > 0) {
        apply_dropout(g_panel.data(), g, first * out, n, dropout);
        g = g_panel.data();
      }
      const Operand g_operand(g, n);
      if (dx) packed.multiply(dx + first * in, g_operand, count);
      if (dw) add_product(dw_part, g_operand, Operand(x + first * in, count * in), count, out, in);
      if (db)
        for (int64_t r = 0; r < count; ++r)
          for (int64_t j = 0; j < out; ++j) db_part[j] += g[r * out + j];
    }
  }
  const auto add_parts = [threads](float* sum, const Tensor& parts, int64_t n) {
    const float* part = parts.data();
#pragma omp parallel for simd schedule(static) if (n >= 1 << 15)
    for (int64_t i = 0; i < n; ++i) {
      float total = part[i];
      for (int64_t t = 1; t < threads; ++t) total += part[t * n + i];
      sum[i] = total;
    }
  };
  if (dw) add_parts(dw, dw_parts, out * in);
  if (db) add_parts(db, db_parts, out);
}

namespace {

constexpr int64_t lanes = 16, panel_columns = 2 * lanes;
using Lanes = float __attribute__((vector_size(lanes * sizeof(float))));
using Halves = uint16_t __attribute__((vector_size(lanes * sizeof(uint16_t))));

Lanes widened(const Lanes& x) { return x; }
Lanes widened(const Halves& x) {  // bfloat16 is the upper half of a float
  using Words = uint32_t __attribute__((vector_size(lanes * sizeof(uint32_t))));
  return reinterpret_cast<Lanes>(__builtin_convertvector(x, Words) << 16);
}

// y[r,:] = activation(x[r,:] w + b) for `rows` rows and a panel w [in][32], whose sums stay in registers. Of the 32
// columns the first n are wanted.
template <int rows, class Stored>
void panel_product(float* y, int64_t stride, const float* x, const Stored* w, const float* b, int64_t in, int64_t n,
                   Activation activation) {
  Lanes sums[rows][2] = {};
  for (int64_t k = 0; k < in; ++k) {
    const Lanes w0 = widened(w[2 * k]), w1 = widened(w[2 * k + 1]);
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      sums[r][0] += x[r * in + k] * w0;
      sums[r][1] += x[r * in + k] * w1;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Lanes bias{}, sum = sums[r][half];
      const int64_t count = std::clamp<int64_t>(n - half * lanes, 0, lanes);
      std::memcpy(&bias, b + half * lanes, static_cast<size_t>(count) * sizeof(float));
      sum += bias;
      if (activation == Activation::relu) sum = sum > 0 ? sum : Lanes{};
      std::memcpy(y + r * stride + half * lanes, &sum, static_cast<size_t>(count) * sizeof(float));
    }
}

}  // namespace

// w^T in panels [out/32][in][32], each read from its beginning to its end by whoever multiplies with it.
class cpu::PackedColumns {
 public:
  static constexpr int64_t most_rows = 12;  // 12 x 2 sums, 2 vectors of w and one of x fill the 32 registers

  PackedColumns(const float* w, int64_t out, int64_t in)
      : out_(out), in_(in), rounded_(precision() == Precision::bf16),
        panels_(static_cast<size_t>(panels() * in * panel_columns) * (rounded_ ? sizeof(uint16_t) : sizeof(float)),
                Device::cpu) {
    std::vector<float> panel(static_cast<size_t>(in * panel_columns));
    for (int64_t i = 0; i < panels(); ++i) {
      for (int64_t k = 0; k < in; ++k)
        for (int64_t j = 0; j < panel_columns; ++j) {
          const int64_t column = i * panel_columns + j;
          panel[static_cast<size_t>(k * panel_columns + j)] = column < out ? w[column * in + k] : 0;
        }
      const int64_t n = in * panel_columns;
      if (rounded_)
        round_to_bf16(static_cast<uint16_t*>(panels_.data()) + i * n, panel.data(), n);
      else
        std::copy(panel.begin(), panel.end(), static_cast<float*>(panels_.data()) + i * n);
    }
  }

  int64_t panels() const { return (out_ + panel_columns - 1) / panel_columns; }

  // Panel i of y [rows,out], for at most most_rows rows of x.
  void multiply(float* y, const float* x, const float* b, int64_t rows, int64_t i, Activation activation) const {
    if (rounded_)
      multiply_by(static_cast<const Halves*>(panels_.data()), y, x, b, rows, i, activation);
    else
      multiply_by(static_cast<const Lanes*>(panels_.data()), y, x, b, rows, i, activation);
  }

 private:
  template <class Stored>
  void multiply_by(const Stored* panels, float* y, const float* x, const float* b, int64_t rows, int64_t i,
                   Activation activation) const {
    constexpr auto products = []<int... n>(std::integer_sequence<int, n...>) {
      return std::array{&panel_product<n + 1, Stored>...};
    }(std::make_integer_sequence<int, most_rows>());
    const int64_t column = i * panel_columns;
    products[static_cast<size_t>(rows - 1)](y + column, out_, x, panels + i * in_ * 2, b + column, in_,
                                            std::min(panel_columns, out_ - column), activation);
  }

  int64_t out_, in_;
  bool rounded_;
  Storage panels_;
};

PackedLinear::PackedLinear(const Tensor& w, const Tensor& b) : w_(w), b_(b) {
  check(w.shape().rank() == 2, "linear: w ", w.shape(), " is not a matrix");
  check(b.shape() == Shape{w.shape()[0]}, "linear: b ", b.shape(), " does not match w ", w.shape());
  if (w.device() == Device::cpu)
    columns_ = std::make_shared<cpu::PackedColumns>(w.data(), w.shape()[0], w.shape()[1]);
}

std::vector<Tensor> linear(const Tensor& x, std::span<const PackedLinear> layers, Activation activation) {
  std::vector<Tensor> y;
  std::vector<std::pair<size_t, int64_t>> work;  // layer, panel
  for (const PackedLinear& layer : layers) {
    const Shape& w = layer.w_.shape();
    check(x.shape().rank() >= 1 && x.shape()[-1] == w[1], "linear: x ", x.shape(), " does not match w ", w);
    if (!layer.columns_) {
      y.push_back(linear(x, layer.w_, layer.b_, activation));
      continue;
    }
    for (int64_t i = 0; i < layer.columns_->panels(); ++i) work.emplace_back(y.size(), i);
    y.emplace_back(x.shape().with_last(w[0]));
  }
  const int64_t in = x.shape()[-1], rows = in ? x.size() / in : 0;
#pragma omp parallel for schedule(static)
  for (size_t n = 0; n < work.size(); ++n) {
    const auto [l, panel] = work[n];
    const int64_t out = y[l].shape()[-1];
    for (int64_t r = 0; r < rows; r += cpu::PackedColumns::most_rows)
      layers[l].columns_->multiply(y[l].data() + r * out, x.data() + r * in, layers[l].b_.data(),
                                   std::min(rows - r, cpu::PackedColumns::most_rows), panel, activation);
  }
  return y;
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b, Activation activation, Dropout dropout) {
  check(w.shape().rank() == 2, "linear: w ", w.shape(), " is not a matrix");
  const int64_t out = w.shape()[0], in = w.shape()[1];
  check(x.shape().rank() >= 1 && x.shape()[-1] == in, "linear: x ", x.shape(), " does not match w ", w.shape());
  check(!b || b.shape() == Shape{out}, "linear: b ", b.shape(), " does not match w ", w.shape());
  check_dropout("linear", dropout);
  const int64_t rows = in ? x.size() / in : 0;
  Tensor y(x.shape().with_last(out), x.device());
  DISPATCH(x.device(), linear_forward(y.data(), x.data(), w.data(), b.data(), rows, out, in, activation, dropout));

  const Tensor kept = activation == Activation::relu ? y : Tensor();
  return record("linear", {x, w, b}, y,
                [x, w, kept, wants_b = b.wants_grad(), rows, out, in, activation,
                 dropout](const Tensor& dy) -> std::vector<Tensor> {
                  Tensor dx, dw, db;
                  if (x.wants_grad()) dx = Tensor(x.shape(), x.device());
                  if (w.wants_grad()) dw = Tensor(w.shape(), x.device());
                  if (wants_b) db = Tensor(Shape{out}, x.device());
                  DISPATCH(x.device(), linear_backward(dx.data(), dw.data(), db.data(), dy.data(), x.data(), w.data(),
                                                       kept.data(), rows, out, in, activation, dropout));
                  return {dx, dw, db};
                });
}

}  // namespace runnel
