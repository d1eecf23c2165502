// Columns of two tensors side by side; the second one may be shared by the batch, as what is learned for each position
// is. Its gradient is then the sum over the batch, in the order of the batch.
#include "engine/check.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {

void cpu::concat_forward(float* y, const float* a, const float* b, int64_t rows, int64_t period, int64_t m, int64_t n) {
  parallel_rows(rows, m + n, [=](int64_t r) {
    copy_numbers(y + r * (m + n), a + r * m, m);
    copy_numbers(y + r * (m + n) + m, b + r % period * n, n);
  });
}

// Each thread owns some rows of b, and the rows of a that stand beside them.
void cpu::concat_backward(float* da, float* db, const float* dy, int64_t rows, int64_t period, int64_t rows_b,
                          int64_t m, int64_t n) {
  parallel_for(rows_b, rows * (m + n) >= parallel_from, [=](int64_t r) {
    clear(db + r * n, n);
    if (r >= period) return;
    for (int64_t i = r; i < rows; i += period) {
      copy_numbers(da + i * m, dy + i * (m + n), m);
      accumulate(db + r * n, dy + i * (m + n) + m, n);
    }
  });
}

#if RUNNEL_ONCE

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

#endif

}  // namespace runnel
