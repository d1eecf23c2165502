// y = dropout(activation(x w^T + b)), one pass over the rows of x.
//
// A thread processes a panel of rows at a time, small enough that its products stay in the core's cache: forward, the
// product and then bias, activation and dropout in place; backward, with g = dL/d(x w^T + b) of the panel,
//   dx = g w,   dw += g^T x,   db += sum of g's rows.
// Each thread adds up its own dw and db; they are summed at the end, in the order of the threads.
#include <omp.h>

#include <algorithm>
#include <optional>

#include "engine/check.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/math.h"
#include "ops/cpu/parallel.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

constexpr int64_t panel_rows = 128;
int64_t panels(int64_t rows) { return (rows + panel_rows - 1) / panel_rows; }

// y = activation(y + b)
void finish(float* y, const float* b, int64_t rows, int64_t n, Activation activation) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float sum = y[r * n + j] + (b ? b[j] : 0);
      y[r * n + j] = activation == Activation::relu && !(sum > 0) ? 0 : sum;
    }
}

void relu_gradient(float* g, const float* dy, const float* y, int64_t n, float kept) {
  for (int64_t i = 0; i < n; ++i) g[i] = y[i] > 0 ? kept * dy[i] : 0;
}

// sum += each row
void add_rows(float* sum, const float* g, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j) sum[j] += g[r * n + j];
}

}  // namespace

void cpu::linear_forward(float* y, const float* x, const float* w, const float* b, int64_t rows, int64_t out,
                         int64_t in, Activation activation, Dropout dropout) {
  if (rows == 0 || out == 0) return;
  std::optional<PackedMatrix> wt;
  if (in > 0) wt.emplace(w, in, out, true);
  parallel_shares(panels(rows), true, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t first = begin * panel_rows; first < std::min(rows, end * panel_rows); first += panel_rows) {
      const int64_t count = std::min(panel_rows, rows - first);
      float* panel = y + first * out;
      if (wt)
        wt->multiply(panel, Operand(x + first * in, count * in), count);
      else
        std::fill_n(panel, count * out, 0.0f);
      finish(panel, b, count, out, activation);
      if (dropout.p > 0) apply_dropout(panel, panel, first * out, count * out, dropout);
    }
  });
}

void cpu::linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                          const float* y, int64_t rows, int64_t out, int64_t in, Activation activation,
                          Dropout dropout) {
  if (rows == 0 || out == 0 || in == 0) {  // sums of nothing; db is overwritten below if there are numbers to add
    if (dx) std::fill_n(dx, rows * in, 0.0f);
    if (dw) std::fill_n(dw, out * in, 0.0f);
    if (db) std::fill_n(db, out, 0.0f);
    dx = dw = nullptr;
  }
  std::optional<PackedMatrix> packed;
  if (dx) packed.emplace(w, out, in, false);
  // Thread 0 adds up in dw and db themselves, the others each in a part.
  const int64_t parts = omp_get_max_threads() - 1;
  Tensor dw_parts(Shape{dw ? parts : 0, out, in}), db_parts(Shape{db ? parts : 0, out});
  const float kept = 1 / (1 - dropout.p);

  const auto work = [&](int64_t begin, int64_t end, int64_t thread) {
    float* const dw_sum = !dw || thread == 0 ? dw : dw_parts.data() + (thread - 1) * out * in;
    float* const db_sum = !db || thread == 0 ? db : db_parts.data() + (thread - 1) * out;
    if (db_sum) std::fill_n(db_sum, out, 0.0f);
    Tensor g_panel(Shape{panel_rows, out});
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * panel_rows, count = std::min(panel_rows, rows - first), n = count * out;
      const float* g = dy + first * out;
      if (activation == Activation::relu)
        relu_gradient(g_panel.data(), g, y + first * out, n, kept);
      else if (dropout.p > 0)
        apply_dropout(g_panel.data(), g, first * out, n, dropout);
      if (activation == Activation::relu || dropout.p > 0) g = g_panel.data();
      const Operand g_operand(g, n);
      if (dx) packed->multiply(dx + first * in, g_operand, count);
      if (dw) transposed_product(dw_sum, g_operand, Operand(x + first * in, count * in), count, out, in, panel > begin);
      if (db) add_rows(db_sum, g, count, out);
    }
  };
  const int64_t sums = parallel_shares(panels(rows), true, work);
  const auto add_parts = [sums](float* sum, const Tensor& others, int64_t n) {
    constexpr int64_t block = 4096;  // stays in the cache
#pragma omp parallel for schedule(static) if (n >= 1 << 15)
    for (int64_t begin = 0; begin < n; begin += block)
      for (int64_t t = 0; t < sums - 1; ++t) {
        const float* const part = others.data() + t * n;
#pragma omp simd
        for (int64_t i = begin; i < std::min(n, begin + block); ++i) sum[i] += part[i];
      }
  };
  if (sums > 1 && dw) add_parts(dw, dw_parts, out * in);
  if (sums > 1 && db) add_parts(db, db_parts, out);
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b, Activation activation, Dropout dropout) {
  check(w.shape().rank() == 2, "linear: w ", w.shape(), " is not a matrix");
  const int64_t out = w.shape()[0], in = w.shape()[1];
  check(x.shape().rank() >= 1 && x.shape()[-1] == in, "linear: x ", x.shape(), " does not match w ", w.shape());
  check(!b || b.shape() == Shape{out}, "linear: b ", b.shape(), " does not match w ", w.shape());
  check_dropout("linear", dropout);
  device_of("linear", x, w, b);
  const int64_t rows = x.shape().without_last().size();
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
