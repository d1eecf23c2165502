// c = op(a) op(b) for two matrices. One kernel with two transpose flags serves the op and both of its gradients:
//   c = a b:  da = dc b^T,  db = a^T dc.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/linear.h"
#include "ops/linear.h"

namespace runnel {

Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  device_of("matmul", a, b);
  check(a.shape().rank() == 2 && b.shape().rank() == 2, "matmul: a ", a.shape(), " and b ", b.shape(),
        " are not two matrices");
  const int64_t m = a.shape()[transpose_a ? 1 : 0], k = a.shape()[transpose_a ? 0 : 1];
  const int64_t n = b.shape()[transpose_b ? 0 : 1];
  check(b.shape()[transpose_b ? 1 : 0] == k, "matmul: a ", a.shape(), transpose_a ? "^T" : "", " does not match b ",
        b.shape(), transpose_b ? "^T" : "");
  Tensor c(Shape{m, n}, a.device());
  DISPATCH(a.device(), matmul(c.data(), a.data(), b.data(), m, n, k, transpose_a, transpose_b));
  return record("matmul", {a, b}, c, [a, b, transpose_a, transpose_b](const Tensor& dc) -> std::vector<Tensor> {
    Tensor da, db;
    if (a.wants_grad()) da = transpose_a ? matmul(b, dc, transpose_b, true) : matmul(dc, b, false, !transpose_b);
    if (b.wants_grad()) db = transpose_b ? matmul(dc, a, true, transpose_a) : matmul(a, dc, !transpose_a, false);
    return {da, db};
  });
}

}  // namespace runnel
