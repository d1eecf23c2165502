// c = op(a) op(b). One kernel with two transpose flags serves the op and both of its gradients:
//   c = a b:  da = dc b^T,  db = a^T dc.
#include <utility>
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/linear.h"
#include "ops/linear.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

Shape matrices(const Shape& shape) { return shape.without_last().without_last(); }

Shape transposed(const Shape& shape) {
  std::vector<int64_t> sizes = shape.sizes();
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  return Shape(sizes);
}

// One matrix b for all of a's, whose rows are those of one matrix, then.
Tensor matmul_rows(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  if (transpose_a) return matmul_rows(transpose(a), b, false, transpose_b);
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
  if (as.rank() > 2 && bs.rank() == 2) return matmul_rows(a, b, transpose_a, transpose_b);
  if (as.rank() == 2 && bs.rank() > 2) return transpose(matmul_rows(b, a, !transpose_b, !transpose_a));
  check(matrices(as) == matrices(bs), "matmul: a ", as, " and b ", bs, " are not equally many matrices");
  Tensor c((transpose_a ? transposed(as) : as).with_last(n), device);
  DISPATCH(device, matmul(c.data(), a.data(), b.data(), matrices(as).size(), m, n, k, transpose_a, transpose_b));
  return record("matmul", {a, b}, c, [a, b, transpose_a, transpose_b](const Tensor& dc) -> std::vector<Tensor> {
    Tensor da, db;
    if (a.wants_grad()) da = transpose_a ? matmul(b, dc, transpose_b, true) : matmul(dc, b, false, !transpose_b);
    if (b.wants_grad()) db = transpose_b ? matmul(dc, a, true, transpose_a) : matmul(a, dc, !transpose_a, false);
    return {da, db};
  });
}

}  // namespace runnel
