// Columns of two tensors side by side; the second one may be shared by the batch, as what is learned for each position
// is. Its gradient is then the sum over the batch.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/shapes.h"
#include "ops/shapes.h"

namespace runnel {

Tensor concat(const Tensor& a, const Tensor& b) {
  const Device device = device_of("concat", a, b);
  const Shape &as = a.shape(), &bs = b.shape();
  check(as.rank() >= 1 && bs.rank() >= 1, "concat: a ", as, " or b ", bs, " has no columns");
  const int64_t m = as[-1], n = bs[-1];
  const bool is_shared = bs.rank() == as.rank() - 1;
  check(is_shared ? bs == as.without_first().with_last(n).with_first(bs[0]) && bs[0] >= as[1] : bs == as.with_last(n),
        "concat: b ", bs, " does not match a ", as);
  const int64_t rows = as.without_last().size(), rows_b = bs.without_last().size();
  const int64_t period = is_shared ? as.without_first().without_last().size() : rows;
  Tensor y(as.with_last(m + n), device);
  DISPATCH(device, concat_forward(y.data(), a.data(), b.data(), rows, period, m, n));
  return record("concat", {a, b}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor da(as.with_last(m), dy.device()), db(bs, dy.device());
    DISPATCH(dy.device(), concat_backward(da.data(), db.data(), dy.data(), rows, period, rows_b, m, n));
    return {da, db};
  });
}

}  // namespace runnel
