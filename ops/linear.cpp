// y = dropout(activation(x w^T + b)), one pass over the rows of x.
//
// A thread takes a panel of rows at a time, small enough that its products stay in the core's cache, and does all there
// is to do with it: forward, the product and then bias, activation and dropout in place; backward, with
// g = dL/d(x w^T + b) of the panel,
//   dx = g w,   dw += g^T x,   db += sum of g's rows.
// Each thread adds up its own dw and db; they are summed at the end, in the order of the threads.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "engine/check.h"
#include "ops/gemm.h"
#include "ops/math.h"
#include "ops/ops.h"

namespace runnel {
namespace {

constexpr int64_t panel_rows = 128;

// y = activation(x + b) for rows of n columns, those of y `stride` apart; y may be x
void finish(float* y, int64_t stride, const float* x, const float* b, int64_t rows, int64_t n, Activation activation) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float sum = x[r * n + j] + (b ? b[j] : 0);
      y[r * stride + j] = activation == Activation::relu && !(sum > 0) ? 0 : sum;
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
    finish(panel, out, panel, b, count, out, activation);
    if (dropout.p > 0) apply_dropout(panel, panel, first * out, count * out, dropout);
  }
}

void cpu::linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                          const float* y, int64_t rows, int64_t out, int64_t in, Activation activation,
                          Dropout dropout) {
  const PackedMatrix packed(w, out, in, false);
  const int64_t threads = omp_get_max_threads();
  Tensor dw_parts = Tensor::full(Shape{dw ? threads : 0, out, in}, 0);
  Tensor db_parts = Tensor::full(Shape{db ? threads : 0, out}, 0);
  const float kept = 1 / (1 - dropout.p);

#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    const int64_t thread = omp_get_thread_num();
    float* dw_part = dw ? dw_parts.data() + thread * out * in : nullptr;
    float* db_part = db ? db_parts.data() + thread * out : nullptr;
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
  const auto add_parts = [threads](Tensor& parts, int64_t n) {
    for (int64_t part = 1; part < threads; ++part) add(parts.data(), parts.data(), parts.data() + part * n, n);
  };
  if (db) {
    add_parts(db_parts, out);
    std::copy_n(db_parts.data(), out, db);
  }
  if (dw) {
    add_parts(dw_parts, out * in);
    std::copy_n(dw_parts.data(), out * in, dw);
  }
}

// w^T, the columns cut into one piece per thread: with few rows, reading w is the work to be shared.
struct cpu::PackedColumns {
  int64_t width;
  std::vector<PackedMatrix> pieces;

  PackedColumns(const float* w, int64_t out, int64_t in) {
    constexpr int64_t vector = 16;
    const int64_t threads = omp_get_max_threads();
    width = std::max((out / vector + threads - 1) / threads * vector, vector);
    for (int64_t first = 0; first < out; first += width)
      pieces.emplace_back(w + first * in, in, std::min(width, out - first), true);
  }

  void multiply(float* y, const float* x, const float* b, int64_t rows, int64_t out, int64_t in,
                Activation activation) const {
    const Operand operand(x, rows * in);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t first = static_cast<int64_t>(i) * width, n = std::min(width, out - first);
      Tensor piece(Shape{rows, n});
      pieces[i].multiply(piece.data(), operand, rows);
      finish(y + first, out, piece.data(), b ? b + first : nullptr, rows, n, activation);
    }
  }
};

PackedWeight::PackedWeight(const Tensor& w) : w_(w) {
  check(w.shape().rank() == 2, "linear: w ", w.shape(), " is not a matrix");
  if (w.device() == Device::cpu)
    columns_ = std::make_shared<cpu::PackedColumns>(w.data(), w.shape()[0], w.shape()[1]);
}

Tensor linear(const Tensor& x, const PackedWeight& w, const Tensor& b, Activation activation) {
  if (!w.columns_) return linear(x, w.w_, b, activation);
  const int64_t out = w.w_.shape()[0], in = w.w_.shape()[1];
  check(x.shape().rank() >= 1 && x.shape()[-1] == in, "linear: x ", x.shape(), " does not match w ", w.w_.shape());
  check(!b || b.shape() == Shape{out}, "linear: b ", b.shape(), " does not match w ", w.w_.shape());
  Tensor y(x.shape().with_last(out));
  if (y.size()) w.columns_->multiply(y.data(), x.data(), b.data(), x.size() / in, out, in, activation);
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
