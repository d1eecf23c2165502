// The same numbers in another order or place: every op here, and its gradient, is a strided copy.
#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/shapes.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/strides.h"

namespace runnel {
namespace {

Shape with_size(const Shape& shape, int axis, int64_t size) {
  std::vector<int64_t> sizes = shape.sizes();
  sizes[static_cast<size_t>(axis)] = size;
  return Shape(sizes);
}

// A part of `whole`: `count` indices of an axis, from `first` on.
struct Part {
  Shape whole;
  int axis;
  int64_t first, count;
  Shape shape() const { return with_size(whole, axis, count); }
  int64_t offset() const { return first * strides_of(whole, whole.rank())[static_cast<size_t>(axis)]; }
};

void put(float* whole, const float* part, const Part& p, Device device) {
  const Shape shape = p.shape();
  const StridedLoop loop = strided_loop(shape, strides_of(p.whole, shape.rank()), strides_of(shape, shape.rank()));
  DISPATCH(device, strided_copy(whole + p.offset(), part, loop));
}

Tensor taken(const Tensor& whole, const Part& p) {
  Tensor part(p.shape(), whole.device());
  const int rank = part.shape().rank();
  const StridedLoop loop = strided_loop(part.shape(), strides_of(part.shape(), rank), strides_of(p.whole, rank));
  DISPATCH(whole.device(), strided_copy(part.data(), whole.data() + p.offset(), loop));
  return part;
}

Tensor transposed(const Tensor& x, const std::vector<int>& axes) {
  const int rank = x.shape().rank();
  const Strides of_x = strides_of(x.shape(), rank);
  Strides from{};
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < axes.size(); ++i) {
    sizes.push_back(x.shape()[axes[i]]);
    from[i] = of_x[static_cast<size_t>(axes[i])];
  }
  Tensor y(Shape(sizes), x.device());
  DISPATCH(x.device(), strided_copy(y.data(), x.data(), strided_loop(y.shape(), strides_of(y.shape(), rank), from)));
  return y;
}

}  // namespace

Tensor transpose(const Tensor& x, std::vector<int> axes) {
  const int rank = x.shape().rank();
  std::vector<int> inverse(static_cast<size_t>(rank), -1);
  for (size_t i = 0; i < axes.size(); ++i) {
    axes[i] = checked_axis("transpose", x.shape(), axes[i]);
    inverse[static_cast<size_t>(axes[i])] = static_cast<int>(i);
  }
  check(std::ssize(axes) == rank && std::count(inverse.begin(), inverse.end(), -1) == 0, "transpose: x ", x.shape(),
        " has ", rank, " axes, each of which must be given once");
  return record("transpose", {x}, transposed(x, axes),
                [inverse](const Tensor& dy) -> std::vector<Tensor> { return {transposed(dy, inverse)}; });
}

Tensor transpose(const Tensor& x) {
  const int rank = x.shape().rank();
  check(rank >= 2, "transpose: x ", x.shape(), " does not have two axes");
  std::vector<int> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
  return transpose(x, axes);
}

Tensor slice(const Tensor& x, int axis, int64_t first, int64_t count) {
  const Part part{x.shape(), checked_axis("slice", x.shape(), axis), first, count};
  const int64_t size = x.shape()[part.axis];
  check(first >= 0 && count >= 0 && first <= size && count <= size - first, "slice: axis ", axis, " of x ", x.shape(),
        " has no ", count, " indices from ", first, " on");
  return record("slice", {x}, taken(x, part), [part](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx = Tensor::full(part.whole, 0, dy.device());
    put(dx.data(), dy.data(), part, dy.device());
    return {dx};
  });
}

Tensor concat(const std::vector<Tensor>& x, int axis) {
  check(!x.empty(), "concat: there is no tensor");
  const Shape& first = x[0].shape();
  const int at = checked_axis("concat", first, axis);
  int64_t size = 0;
  for (const Tensor& each : x) {
    device_of("concat", x[0], each);
    const Shape& shape = each.shape();
    check(shape.rank() == first.rank() && with_size(shape, at, 0) == with_size(first, at, 0), "concat: ", shape,
          " does not match ", first, " in every axis but ", axis);
    size += shape[at];
  }
  Tensor y(with_size(first, at, size), x[0].device());
  std::vector<Part> parts;
  for (int64_t begin = 0; const Tensor& each : x) {
    parts.push_back({y.shape(), at, begin, each.shape()[at]});
    put(y.data(), each.data(), parts.back(), y.device());
    begin += parts.back().count;
  }
  return record("concat", x, y, [parts](const Tensor& dy) {
    std::vector<Tensor> dx;
    for (const Part& part : parts) dx.push_back(taken(dy, part));
    return dx;
  });
}

Tensor stack(const std::vector<Tensor>& x) {
  std::vector<Tensor> rows;
  for (const Tensor& each : x) rows.push_back(reshape(each, each.shape().stacked(1)));
  return concat(rows, 0);
}

Tensor broadcast(const Tensor& x, const Shape& shape) {
  check(repeats_to(x.shape(), shape), "broadcast: x ", x.shape(), " cannot be repeated to ", shape);
  Tensor y(shape, x.device());
  DISPATCH(x.device(),
           strided_copy(y.data(), x.data(),
                        strided_loop(shape, strides_of(shape, shape.rank()), strides_of(x.shape(), shape.rank()))));
  return record("broadcast", {x}, y,
                [from = x.shape()](const Tensor& dy) -> std::vector<Tensor> { return {sum_to(dy, from)}; });
}

}  // namespace runnel
