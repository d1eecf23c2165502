// Dropout. The rule keeps the key and not the mask, and is the op itself: it is linear in x and diagonal.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/checks.h"
#include "ops/kernels/layers.h"
#include "ops/layers.h"

namespace runnel {

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

}  // namespace runnel
