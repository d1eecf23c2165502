// c = op(a) op(b). One kernel with two transpose flags serves the op and both of its gradients:
//   c = a b:  da = dc b^T,  db = a^T dc;  da is summed over the products if they share one a.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/linear.h"
#include "ops/linear.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

Shape matrices(const Shape& shape) { return shape.without_last().without_last(); }

// One matrix b for all of a's, whose rows are those of one matrix, then.
Tensor matmul_rows(const Tensor& a, const Tensor& b, bool transpose_b) {
  const Shape rows = a.shape().without_last();
  const Tensor c = matmul(reshape(a, Shape{rows.size(), a.shape()[-1]}), b, false, transpose_b);
  return reshape(c, a.shape().with_last(c.shape()[1]));
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  const Device device = device_of("matmul", a, b);
  const Shape &as = a.shape(), &bs = b.shape();
  check(as.rank() >= 2 && bs.rank() >= 2, "matmul: a ", as, " or b ", bs, " is not a matrix");
  const int64_t m = as[transpose_a ? -1 : -2], k = as[transpose_a ? -2 : -1], n = bs[transpose_b ? -2 : -1];
  check(bs[transpose_b ? -1 : -2] == k, "matmul: a ", as, transpose_a ? "^T" : "", " does not match b ", bs,
        transpose_b ? "^T" : "");
  if (as.rank() > 2 && bs.rank() == 2) return matmul_rows(transpose_a ? transpose(a) : a, b, transpose_b);
  const bool same_a = as.rank() == 2;
  check(same_a || matrices(as) == matrices(bs), "matmul: a ", as, " and b ", bs, " are not equally many matrices");
  std::vector<int64_t> sizes = bs.sizes();
  sizes.end()[-2] = m;
  Tensor c(Shape(sizes).with_last(n), device);
  DISPATCH(device,
           matmul(c.data(), a.data(), b.data(), matrices(bs).size(), m, n, k, transpose_a, transpose_b, same_a));
  return record("matmul", {a, b}, c, [a, b, transpose_a, transpose_b](const Tensor& dc) -> std::vector<Tensor> {
    Tensor da, db;
    if (a.wants_grad())
      da = sum_to(transpose_a ? matmul(b, dc, transpose_b, true) : matmul(dc, b, false, !transpose_b), a.shape());
    if (b.wants_grad()) db = transpose_b ? matmul(dc, a, true, transpose_a) : matmul(a, dc, !transpose_a, false);
    return {da, db};
  });
}

}  // namespace runnel
