// Rows taken and put by an index that lies on the device: what sampling needs besides the model. No gradients.
#include <algorithm>

#include "ops/ops.h"

namespace runnel {

void cpu::gather_rows(float* y, const float* x, const int32_t* rows, int64_t count, int64_t n) {
#pragma omp parallel for schedule(static) if (count * n >= 1 << 15)
  for (int64_t i = 0; i < count; ++i) std::copy_n(x + rows[i] * n, n, y + i * n);
}

void cpu::put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n) {
  std::copy_n(row, n, rows + index[0] * n);
}

void cpu::advance(int32_t* position) { ++position[0]; }

Tensor gather_rows(const Tensor& x, const Indices& rows) {
  const Device device = device_of("gather_rows", x, rows);
  check(x.shape().rank() >= 1 && rows.shape().rank() == 1, "gather_rows: x ", x.shape(), " or rows ", rows.shape(),
        " have the wrong rank");
  const int64_t all = x.shape()[0], n = all ? x.size() / all : 0, count = rows.size();
  if (device == Device::cpu)
    for (const int32_t row : rows.to_vector())
      check(row >= 0 && row < all, "gather_rows: there is no row ", row, " in x ", x.shape());
  Tensor y(x.shape().with_first(count), device);
  DISPATCH(device, gather_rows(y.data(), x.data(), rows.data(), count, n));
  return y;
}

}  // namespace runnel
