// Rows read and written by an index in device memory, for sampling, without gradients; and the first positions of
// sequences, with gradients: taken, they get theirs and all others 0; replaced, the other way round.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/shapes.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

// [B,L,...] as B rows of numbers, of which the first belong to the first n positions.
struct FirstPositions {
  int64_t batch, n, row;
  FirstPositions(const Shape& x, int64_t positions) : batch(x[0]), n(0), row(batch ? x.size() / batch : 0) {
    if (x[1] > 0) n = row / x[1] * positions;
  }
};

Shape with_positions(const Shape& x, int64_t n) {
  std::vector<int64_t> sizes;
  for (int axis = 0; axis < x.rank(); ++axis) sizes.push_back(axis == 1 ? n : x[axis]);
  return Shape(sizes);
}

Tensor first_positions(const Tensor& x, int64_t positions, const FirstPositions& s) {
  Tensor y(with_positions(x.shape(), positions), x.device());
  DISPATCH(x.device(), first_positions(y.data(), x.data(), s.batch, s.n, s.row));
  return y;
}

}  // namespace

Tensor first_positions(const Tensor& x, int64_t n) {
  const Shape shape = x.shape();
  check(shape.rank() >= 2 && n >= 0 && n <= shape[1], "first_positions: there are no first ", n, " positions in x ",
        shape);
  const FirstPositions s(shape, n);
  return record("first_positions", {x}, first_positions(x, n, s), [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(shape, dy.device());
    DISPATCH(dy.device(), with_first_positions(dx.data(), nullptr, dy.data(), s.batch, s.n, s.row));
    return {dx};
  });
}

Tensor with_first_positions(const Tensor& x, const Tensor& first) {
  const Device device = device_of("with_first_positions", x, first);
  const Shape shape = x.shape();
  const int64_t n = first.shape().rank() >= 2 ? first.shape()[1] : 0;
  check(shape.rank() >= 2 && n <= shape[1] && first.shape() == with_positions(shape, n), "with_first_positions: first ",
        first.shape(), " is not made of positions of x ", shape);
  const FirstPositions s(shape, n);
  Tensor y(shape, device);
  DISPATCH(device, with_first_positions(y.data(), x.data(), first.data(), s.batch, s.n, s.row));
  return record("with_first_positions", {x, first}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(shape, device);
    DISPATCH(device, with_first_positions(dx.data(), dy.data(), nullptr, s.batch, s.n, s.row));
    return {dx, first_positions(dy, n, s)};
  });
}

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
