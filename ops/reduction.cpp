// Sums, means and largest numbers over an axis or over all, and running sums. The gradient of a sum is dy, repeated; of
// a largest number, dy at the first place where it stands; of a running sum, the running sum from the other end.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/checks.h"
#include "ops/elementwise.h"
#include "ops/kernels/reductions.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/strides.h"

namespace runnel {
namespace {

struct Axis {  // x as [outer,n,inner]
  int64_t outer = 1, n = 1, inner = 1;
  Shape reduced, kept;  // without the axis, and with size 1 in its place

  Axis(const char* op, const Shape& shape, int axis) {
    axis = checked_axis(op, shape, axis);
    for (int i = 0; i < shape.rank(); ++i) (i < axis ? outer : i == axis ? n : inner) *= shape[i];
    std::vector<int64_t> sizes = shape.sizes();
    sizes[static_cast<size_t>(axis)] = 1;
    kept = Shape(sizes);
    sizes.erase(sizes.begin() + axis);
    reduced = Shape(sizes);
  }
};

}  // namespace

Tensor sum(const Tensor& x, int axis, bool keep_axis) {
  const Axis a("sum", x.shape(), axis);
  Tensor y(keep_axis ? a.kept : a.reduced, x.device());
  DISPATCH(x.device(), sum(y.data(), x.data(), a.outer, a.n, a.inner));
  return record("sum", {x}, y, [a, shape = x.shape()](const Tensor& dy) -> std::vector<Tensor> {
    return {broadcast(dy.viewed_as(a.kept), shape)};
  });
}

Tensor sum(const Tensor& x) { return sum(reshape(x, Shape{x.size()}), 0); }

Tensor mean(const Tensor& x, int axis, bool keep_axis) {
  const Tensor y = sum(x, axis, keep_axis);
  return scale(y, 1 / static_cast<float>(x.shape()[axis]));
}

Tensor mean(const Tensor& x) { return scale(sum(x), 1 / static_cast<float>(x.size())); }

namespace {

// The largest numbers over an axis, and the first place of each in it.
std::pair<Tensor, Indices> largest(const char* op, const Tensor& x, int axis, const Axis& a, const Shape& shape) {
  check(a.n > 0, op, ": axis ", axis, " of x ", x.shape(), " has no numbers");
  Tensor y(shape, x.device());
  Indices index(shape, x.device());
  DISPATCH(x.device(), max_forward(y.data(), index.data(), x.data(), a.outer, a.n, a.inner));
  return {y, index};
}

}  // namespace

Indices argmax(const Tensor& x) {
  refuse_gradient("argmax", "x", x);
  const Axis a("argmax", x.shape(), -1);
  return largest("argmax", x, -1, a, a.reduced).second;
}

Tensor max(const Tensor& x, int axis, bool keep_axis) {
  const Axis a("max", x.shape(), axis);
  const std::pair<Tensor, Indices> found = largest("max", x, axis, a, keep_axis ? a.kept : a.reduced);
  return record("max", {x}, found.first,
                [a, index = found.second, shape = x.shape()](const Tensor& dy) -> std::vector<Tensor> {
                  Tensor dx(shape, dy.device());
                  DISPATCH(dy.device(), max_backward(dx.data(), dy.data(), index.data(), a.outer, a.n, a.inner));
                  return {dx};
                });
}

Tensor max(const Tensor& x) { return max(reshape(x, Shape{x.size()}), 0); }

Tensor sum_to(Tensor x, const Shape& shape) {
  check(repeats_to(shape, x.shape()), "sum_to: x ", x.shape(), " is not ", shape, " repeated");
  const int leading = x.shape().rank() - shape.rank();
  for (int axis = 0; axis < x.shape().rank(); ++axis)
    if (x.shape()[axis] != 1 && (axis < leading || shape[axis - leading] == 1)) x = sum(x, axis, true);
  return reshape(x, shape);
}

Tensor mean_positions(const Tensor& x, const Indices& lengths) {
  const char* const op = "mean_positions";
  check(x.shape().rank() == 3 && x.shape()[1] > 0, op, ": x ", x.shape(), " is not [B,L,D] with positions");
  const int64_t batch = x.shape()[0], length = x.shape()[1];
  if (!lengths) return mean(x, 1);
  check_lengths(op, lengths, batch, length);
  const Tensor counts = sum(zero_padding(Tensor::full(Shape{batch, length}, 1, x.device()), lengths), 1, true);
  return sum(zero_padding(x, lengths), 1) / maximum(counts, Tensor::full(Shape{1}, 1, x.device()));
}

Tensor cumulative_sum(const Tensor& x, int axis) {
  const Axis a("cumulative_sum", x.shape(), axis);
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), cumulative_sum(y.data(), x.data(), a.outer, a.n, a.inner, false));
  return record("cumulative_sum", {x}, y, [a](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(dy.shape(), dy.device());
    DISPATCH(dy.device(), cumulative_sum(dx.data(), dy.data(), a.outer, a.n, a.inner, true));
    return {dx};
  });
}

namespace {

Tensor softmax(const char* op, const Tensor& x, bool log) {
  check(x.shape().rank() >= 1, op, ": x ", x.shape(), " has no axis");
  const int64_t n = x.shape()[-1], rows = n ? x.size() / n : 0;
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), softmax_forward(y.data(), x.data(), rows, n, log));
  return record(op, {x}, y, [y, rows, n, log](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(dy.shape(), dy.device());
    DISPATCH(dy.device(), softmax_backward(dx.data(), dy.data(), y.data(), rows, n, log));
    return {dx};
  });
}

}  // namespace

Tensor softmax(const Tensor& x) { return softmax("softmax", x, false); }
Tensor log_softmax(const Tensor& x) { return softmax("log_softmax", x, true); }

Tensor rms_norm(const Tensor& x, const Tensor& gamma, float eps) {
  check(x.shape().rank() >= 1 && gamma.shape() == Shape{x.shape()[-1]}, "rms_norm: gamma ", gamma.shape(),
        " does not match the last axis of x ", x.shape());
  return x / sqrt(mean(square(x), -1, true) + eps) * gamma;
}

Tensor l2_normalize(const Tensor& x, float eps) { return x / sqrt(sum(square(x), -1, true) + eps); }

}  // namespace runnel
