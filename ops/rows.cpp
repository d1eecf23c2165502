// Rows read and written by an index in device memory, and rows that are padding.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/checks.h"
#include "ops/kernels/layers.h"
#include "ops/kernels/shapes.h"
#include "ops/shapes.h"

namespace runnel {

// A row is a token's embedding, and its gradient that of a table.
Tensor gather(const Tensor& x, const Indices& rows) {
  const Device device = device_of("gather", x, rows);
  const Shape shape = x.shape();
  check(shape.rank() >= 1, "gather: x ", shape, " has no rows");
  const int64_t all = shape[0], n = shape.without_first().size(), count = rows.size();
  if (device == Device::cpu)
    for (const int32_t row : rows.to_vector())
      check(row >= 0 && row < all, "gather: there is no row ", row, " in x ", shape);
  std::vector<int64_t> sizes = rows.shape().sizes();
  for (int axis = 1; axis < shape.rank(); ++axis) sizes.push_back(shape[axis]);
  Tensor y(Shape(sizes), device);
  DISPATCH(device, embedding_forward(y.data(), rows.data(), x.data(), nullptr, nullptr, 1, count, n, 0, {}));
  return record("gather", {x}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(shape, device);
    DISPATCH(device, embedding_backward(dx.data(), dy.data(), rows.data(), 1, count, all, n, 0, {}));
    return {dx};
  });
}

Tensor zero_padding(const Tensor& x, const Indices& lengths) {
  const char* const op = "zero_padding";
  if (!lengths) return x;
  const Shape shape = x.shape();
  const Device device = device_of(op, x, lengths);
  check(shape.rank() >= 2, op, ": x ", shape, " is not [B,L,...]");
  check_lengths(op, lengths, shape[0], shape[1]);
  const auto padded_with_zeros = [=](const Tensor& from) {
    Tensor y(shape, device);
    const int64_t row = shape.without_first().without_first().size();
    DISPATCH(device, zero_padding(y.data(), from.data(), lengths.data(), shape[0], shape[1], row));
    return y;
  };
  return record(op, {x}, padded_with_zeros(x),
                [=](const Tensor& dy) -> std::vector<Tensor> { return {padded_with_zeros(dy)}; });
}

Indices shifted(const Indices& x, int64_t by) {
  Indices y(x.shape(), x.device());
  DISPATCH(x.device(), shift(y.data(), x.data(), by, x.size()));
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

}  // namespace runnel
