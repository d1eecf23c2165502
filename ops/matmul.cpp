// c = op(a) op(b) for two matrices. One kernel with two transpose flags serves the op and both of its gradients:
//   c = a b:  da = dc b^T,  db = a^T dc.
#include <dnnl.h>

#include "engine/check.h"
#include "ops/gemm.h"
#include "ops/ops.h"

namespace runnel {

void cpu::gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
               const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1, a, lda, b, ldb,
                                          beta, c, ldc);
  check(status == dnnl_success, "matrix product of ", m, " x ", k, " and ", k, " x ", n, ": oneDNN failed with status ",
        int{status});
}

void cpu::matmul(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
                 bool transpose_b) {
  if (k == 0) std::fill_n(c, m * n, 0.0f);
  if (m == 0 || n == 0 || k == 0) return;
  gemm(transpose_a, transpose_b, m, n, k, a, transpose_a ? m : k, b, transpose_b ? k : n, 0, c, n);
}

Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
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
