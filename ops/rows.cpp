// Rows read and written by an index in device memory, for sampling. No gradients.
#include "engine/check.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {

void cpu::gather_rows(float* y, const float* x, const int32_t* rows, int64_t count, int64_t n) {
  parallel_rows(count, n, [=](int64_t i) { copy_numbers(y + i * n, x + rows[i] * n, n); });
}

void cpu::put_row(int32_t* rows, const int32_t* row, const int32_t* index, int64_t n) {
  std::memcpy(rows + index[0] * n, row, static_cast<size_t>(n) * sizeof(int32_t));
}

void cpu::advance(int32_t* position, int64_t period) { position[0] = position[0] + 1 == period ? 0 : position[0] + 1; }

#if RUNNEL_ONCE

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

void put_row(Indices& rows, const Indices& row, const Indices& index) {
  const Device device = device_of("put_row", rows, row, index);
  const Shape& shape = rows.shape();
  check(shape.rank() >= 1 && index.size() == 1 && row.size() * shape[0] == rows.size(), "put_row: row ", row.shape(),
        " or index ", index.shape(), " does not match rows ", shape);
  check(device != Device::cpu || (index.data()[0] >= 0 && index.data()[0] < shape[0]), "put_row: there is no row ",
        device == Device::cpu ? index.data()[0] : 0, " in ", shape);
  DISPATCH(device, put_row(rows.data(), row.data(), index.data(), row.size()));
}

void advance(Indices& position, int64_t period) {
  check(position.size() == 1, "advance: position ", position.shape(), " is not one number");
  DISPATCH(position.device(), advance(position.data(), period));
}

#endif

}  // namespace runnel
