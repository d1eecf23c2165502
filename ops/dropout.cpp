// Dropout: y_i = x_i / (1 - p) with probability 1 - p, else 0. The mask is not kept: the backward pass draws it again,
// since element i's 16 random bits are a function of the key and i alone (engine/random.h). The op is linear in x and
// diagonal, so it is its own gradient.
#include "ops/cpu/dropout.h"
#include "engine/check.h"
#include "ops/checks.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {

void cpu::dropout(float* y, const float* x, int64_t n, Dropout dropout) {
  constexpr int64_t piece = 1 << 13;
  parallel_pieces(n, piece, n >= parallel_from,
                  [=](int64_t begin, int64_t count) { apply_dropout(y + begin, x + begin, begin, count, dropout); });
}

#if RUNNEL_ONCE

void check_dropout(const char* op, const Dropout& dropout) {
  check(dropout.p >= 0 && dropout.p < 1, op, ": the dropout probability ", dropout.p, " is not in [0, 1)");
}

Tensor dropout(const Tensor& x, Dropout dropout) {
  check_dropout("dropout", dropout);
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), dropout(y.data(), x.data(), x.size(), dropout));
  return record("dropout", {x}, y, [dropout](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(dy.shape(), dy.device());
    DISPATCH(dy.device(), dropout(dx.data(), dy.data(), dy.size(), dropout));
    return {dx};
  });
}

#endif

}  // namespace runnel
