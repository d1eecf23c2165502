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
#include "ops/math.h"
#include "ops/ops.h"

namespace runnel {
namespace {

constexpr int64_t panel_rows = 128;
constexpr int64_t few_rows = 4;  // up to here reading w is all the work, and each row of it is read once

void transpose(float* to, const float* from, int64_t rows, int64_t columns) {
  constexpr int64_t tile = 16;
#pragma omp parallel for schedule(static) if (rows * columns >= 1 << 15)
  for (int64_t r0 = 0; r0 < rows; r0 += tile)
    for (int64_t c0 = 0; c0 < columns; c0 += tile)
      for (int64_t c = c0; c < std::min(c0 + tile, columns); ++c)
        for (int64_t r = r0; r < std::min(r0 + tile, rows); ++r) to[c * rows + r] = from[r * columns + c];
}

// The library is fastest when memory runs along the longer side of w in the product x w^T. If that is not so, a
// transposed copy costs nothing beside the product of many rows. [out,in] -> [in,out], or empty.
Tensor transposed_if_faster(const float* w, int64_t out, int64_t in) {
  if (in <= out) return {};
  Tensor wt(Shape{in, out});
  transpose(wt.data(), w, out, in);
  return wt;
}

void finish_rows(float* y, const float* b, int64_t first, int64_t rows, int64_t out, Activation activation,
                 const Dropout& dropout) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = y + r * out;
    if (b)
      for (int64_t j = 0; j < out; ++j) row[j] += b[j];
    if (activation == Activation::relu)
      for (int64_t j = 0; j < out; ++j) row[j] = row[j] > 0 ? row[j] : 0;
  }
  if (dropout.p > 0) apply_dropout(y, y, first * out, rows * out, dropout);
}

// y[r,j] = x[r,:] . w[j,:] for `count` rows at once, w read once.
template <int count>
void dot_rows(float* y, const float* x, const float* w, int64_t out, int64_t in) {
  constexpr int lanes = 16, block = 4;  // count * block accumulators of 16 lanes fit the registers
#pragma omp parallel for schedule(static) if (out * in >= 1 << 15)
  for (int64_t j0 = 0; j0 < out; j0 += block) {
    const int64_t columns = std::min<int64_t>(block, out - j0);
    float sums[count][block][lanes] = {};
    const int64_t whole = in / lanes * lanes;
    if (columns == block)
      for (int64_t i = 0; i < whole; i += lanes)
        for (int r = 0; r < count; ++r)
          for (int j = 0; j < block; ++j)
#pragma omp simd
            for (int l = 0; l < lanes; ++l) sums[r][j][l] += x[r * in + i + l] * w[(j0 + j) * in + i + l];
    for (int r = 0; r < count; ++r)
      for (int64_t j = 0; j < columns; ++j) {
        float total = 0;
        for (int l = 0; l < lanes; ++l) total += sums[r][j][l];
        for (int64_t i = columns == block ? whole : 0; i < in; ++i) total += x[r * in + i] * w[(j0 + j) * in + i];
        y[r * out + j0 + j] = total;
      }
  }
}

}  // namespace

void cpu::linear_forward(float* y, const float* x, const float* w, const float* b, int64_t rows, int64_t out, int64_t in,
                         Activation activation, Dropout dropout) {
  if (rows <= few_rows) {
    if (rows == 1) dot_rows<1>(y, x, w, out, in);
    if (rows == 2) dot_rows<2>(y, x, w, out, in);
    if (rows == 3) dot_rows<3>(y, x, w, out, in);
    if (rows == 4) dot_rows<4>(y, x, w, out, in);
    finish_rows(y, b, 0, rows, out, activation, dropout);
    return;
  }
  const Tensor transposed = transposed_if_faster(w, out, in);
  const float* wt = transposed.data();
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < rows; first += panel_rows) {
    const int64_t count = std::min(panel_rows, rows - first);
    float* panel = y + first * out;
    gemm(false, !wt, count, out, in, x + first * in, in, wt ? wt : w, wt ? out : in, 0, panel, out);
    finish_rows(panel, b, first, count, out, activation, dropout);
  }
}

void cpu::linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                          const float* y, int64_t rows, int64_t out, int64_t in, Activation activation,
                          Dropout dropout) {
  const Tensor transposed = transposed_if_faster(w, out, in);
  const float* wt = transposed.data();
  const int64_t threads = omp_get_max_threads();
  const bool flip = out > in;  // add up dw as [in,out] then: again the longer side runs along memory
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
      if (dx) gemm(false, wt, count, in, out, g, out, wt ? wt : w, wt ? out : in, 0, dx + first * in, in);
      if (dw && flip) gemm(true, false, in, out, count, x + first * in, in, g, out, 1, dw_part, out);
      if (dw && !flip) gemm(true, false, out, in, count, g, out, x + first * in, in, 1, dw_part, in);
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
    if (flip)
      transpose(dw, dw_parts.data(), in, out);
    else
      std::copy_n(dw_parts.data(), out * in, dw);
  }
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
