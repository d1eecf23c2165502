// y = dropout(activation(x w^T + b)), one pass over the rows of x.
//
// A thread processes a block of rows at a time, small enough that its products stay in the core's cache: forward, the
// product and then bias, activation and dropout in place; backward, with g = dL/d(x w^T + b) of the block,
//   dx = g w,   dw += g^T x,   db += sum of g's rows.
// dw and db are summed up for a number of parts that depends only on the number of rows, and those are added in their
// order: the same bytes with any number of threads.
#include <algorithm>
#include <optional>
#include <type_traits>

#include "engine/check.h"
#include "engine/numerics.h"
#include "ops/checks.h"
#include "ops/cpu/dropout.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/panels.h"
#include "ops/cpu/parallel.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

// oneDNN's products where it has kernels for packed operands, which older versions have for AVX-512 only; else ours.
constexpr bool use_onednn = lanes == 16;
using Weights = std::conditional_t<use_onednn, onednn::PackedMatrix, PanelMatrix>;
using Operand = std::conditional_t<use_onednn, onednn::Operand, PanelOperand>;

constexpr int64_t rows_at_once = use_onednn ? 128 : 96;  // 96: a multiple of the rows of all blocks of panels.h

// y = activation(y + b)
void finish(float* y, const float* b, int64_t rows, int64_t n, Activation activation) {
  for (int64_t r = 0; r < rows; ++r, y += n) {
    if (b) accumulate(y, b, n);
    if (activation == Activation::relu)
      map(
          y, n, [](Lanes x) RUNNEL_INLINE { return x > 0 ? x : Lanes{}; }, y);
  }
}

}  // namespace

void cpu::linear_forward(float* y, const float* x, const float* w, const float* b, int64_t rows, int64_t out,
                         int64_t in, Activation activation, Dropout dropout) {
  if (rows == 0 || out == 0) return;
  if (in == 0) clear(y, rows * out);
  std::optional<Weights> wt;
  if (in > 0) wt.emplace(w, in, out, true);
  FirstError error;
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < rows; first += rows_at_once)
    error.guard([&] {
      const int64_t count = std::min(rows_at_once, rows - first);
      float* const block = y + first * out;
      if (wt) wt->multiply(block, Operand(x + first * in, count * in), count);
      finish(block, b, count, out, activation);
      if (dropout.p > 0) apply_dropout(block, block, first * out, count * out, dropout);
    });
  error.rethrow();
}

namespace {

struct LinearGradients {
  float *dx, *dw, *db;  // each may be null
};
struct LinearInputs {
  const float *dy, *x, *y;
  int64_t out, in;
  Activation activation;
  Dropout dropout;
};

// g of rows [first, first + count): dy itself where it is that, else computed into `memory`.
const float* output_gradient(float* memory, const LinearInputs& of, int64_t first, int64_t count) {
  const float* const dy = of.dy + first * of.out;
  const int64_t n = count * of.out;
  if (of.activation == Activation::relu) {
    const float kept = 1 / (1 - of.dropout.p);  // y is 0 where it was dropped
    map(
        memory, n, [kept](Lanes g, Lanes y) RUNNEL_INLINE { return y > 0 ? kept * g : Lanes{}; }, dy,
        of.y + first * of.out);
    return memory;
  }
  if (of.dropout.p == 0) return dy;
  apply_dropout(memory, dy, first * of.out, n, of.dropout);
  return memory;
}

// The gradients of rows [begin, end), of which those of w and b are sums.
void backward_rows(const LinearGradients& to, const LinearInputs& of, const Weights* w, int64_t begin, int64_t end) {
  const int64_t out = of.out, in = of.in;
  const Scratch g_memory(rows_at_once * out);
  if (to.db) clear(to.db, out);
  for (int64_t first = begin; first < end; first += rows_at_once) {
    const int64_t count = std::min(rows_at_once, end - first);
    const float* const g = output_gradient(g_memory.data(), of, first, count);
    const Operand g_operand(g, count * out);
    if (to.dx) w->multiply(to.dx + first * in, g_operand, count);
    if (to.dw)
      transposed_product(to.dw, g_operand, Operand(of.x + first * in, count * in), count, out, in, first > begin);
    if (to.db)
      for (int64_t r = 0; r < count; ++r) accumulate(to.db, g + r * out, out);
  }
}

}  // namespace

void cpu::linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                          const float* y, int64_t rows, int64_t out, int64_t in, Activation activation,
                          Dropout dropout) {
  if (rows == 0 || out == 0 || in == 0) {  // sums of nothing; db is overwritten below if there are numbers to add
    if (dx) clear(dx, rows * in);
    if (dw) clear(dw, out * in);
    if (db) clear(db, out);
    dx = dw = nullptr;
  }
  if (rows == 0) return;
  std::optional<Weights> packed;
  if (dx) packed.emplace(w, out, in, false);
  // The first part is summed up in dw and db themselves.
  const RowParts parts(rows, 16, 512);
  const int64_t size = (dw ? out * in : 0) + (db ? out : 0);
  const Scratch sums((parts.count - 1) * size);
  const LinearInputs inputs{dy, x, y, out, in, activation, dropout};
  const auto of_part = [&](int64_t part) -> LinearGradients {
    if (part == 0) return {dx, dw, db};
    float* const own = sums.data() + (part - 1) * size;
    return {dx, dw ? own : nullptr, db ? own + size - out : nullptr};
  };
  FirstError error;
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < parts.count; ++part)
    error.guard(
        [&] { backward_rows(of_part(part), inputs, packed ? &*packed : nullptr, parts.begin(part), parts.end(part)); });
  error.rethrow();
  const auto add_parts = [&](float* sum, int64_t offset, int64_t n) {
    constexpr int64_t piece = 4096;  // stays in the cache
    parallel_pieces(n, piece, n >= parallel_from, [&](int64_t begin, int64_t count) {
      for (int64_t part = 1; part < parts.count; ++part)
        accumulate(sum + begin, sums.data() + (part - 1) * size + offset + begin, count);
    });
  };
  if (dw) add_parts(dw, 0, out * in);
  if (db) add_parts(db, size - out, out);
}

#if RUNNEL_ONCE

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

#endif

}  // namespace runnel
