// y = dropout(activation(x w^T + b)), one pass over the rows of x.
//
// A thread takes a panel of rows at a time, small enough that its products stay in the core's cache, and does all there
// is to do with it: forward, the product and then bias, activation and dropout in place; backward, with
// g = dL/d(x w^T + b) of the panel,
//   dx = g w,   dw += g^T x,   db += sum of g's rows.
// Each thread adds up its own dw and db; they are summed at the end, in the order of the threads.
#include <omp.h>

#include <algorithm>

#include "engine/check.h"
#include "ops/gemm.h"
#include "ops/kernels.h"
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

void cpu::linear_forward(float* y, const float* x, const float* w, const float* b, int64_t rows, int64_t out,
                         int64_t in, Activation activation, Dropout dropout) {
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
  Tensor dw_parts = Tensor::full(Shape{dw ? threads : 0, out, in}, 0);
  Tensor db_parts = Tensor::full(Shape{db ? threads : 0, out}, 0);
  const float kept = 1 / (1 - dropout.p);

#pragma omp parallel
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

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b, Activation activation, Dropout dropout) {
  check(w.shape().rank() == 2, "linear: w ", w.shape(), " is not a matrix");
  const int64_t out = w.shape()[0], in = w.shape()[1];
  check(x.shape().rank() >= 1 && x.shape()[-1] == in, "linear: x ", x.shape(), " does not match w ", w.shape());
  check(!b || b.shape() == Shape{out}, "linear: b ", b.shape(), " does not match w ", w.shape());
  check_dropout("linear", dropout);
  device_of("linear", x, w, b);
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
