#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// Indices along the axes of element number i.
std::vector<int64_t> indices_of(int64_t i, const Shape& shape) {
  std::vector<int64_t> indices(static_cast<size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; i /= shape[axis--]) indices[static_cast<size_t>(axis)] = i % shape[axis];
  return indices;
}
int64_t element_at(const std::vector<int64_t>& indices, const Shape& shape) {
  int64_t i = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) i = i * shape[axis] + indices[static_cast<size_t>(axis)];
  return i;
}

// y of this shape, each element of which is that of x at `from(its indices)`.
std::vector<double> moved(const Tensor& x, const Shape& shape,
                          const std::function<std::vector<int64_t>(std::vector<int64_t>)>& from) {
  const std::vector<double> values = doubles(x);
  std::vector<double> y;
  for (int64_t i = 0; i < shape.size(); ++i)
    y.push_back(values[static_cast<size_t>(element_at(from(indices_of(i, shape)), x.shape()))]);
  return y;
}

}  // namespace

TEST_CASE("transpose: any order of the axes, and its gradient") {
  struct Case {
    Shape shape;
    std::vector<int> axes;
    Shape result;
  };
  const std::vector<Case> cases{{{2, 3}, {1, 0}, {3, 2}},
                                {{33, 65}, {1, 0}, {65, 33}},
                                {{2, 3, 4, 5}, {0, 2, 1, 3}, {2, 4, 3, 5}},
                                {{2, 3, 4, 5}, {3, 2, 1, 0}, {5, 4, 3, 2}},
                                {{2, 3, 4}, {-1, 0, 1}, {4, 2, 3}},
                                {{1, 3, 1, 2}, {2, 3, 0, 1}, {1, 2, 1, 3}},
                                {{5}, {0}, {5}},
                                {{}, {}, {}},
                                {{0, 3}, {1, 0}, {3, 0}}};
  for (const Case& c : cases)
    for (Device device : devices()) {
      CAPTURE(c.shape);
      const Tensor x = random_tensor(c.shape, 1, -1, 1, device), y = transpose(x, c.axes);
      REQUIRE(y.shape() == c.result);
      check_close(y,
                  moved(x, c.result,
                        [&](const std::vector<int64_t>& at) {
                          std::vector<int64_t> from(at.size());
                          for (size_t i = 0; i < at.size(); ++i)
                            from[static_cast<size_t>((c.axes[i] + c.shape.rank()) % c.shape.rank())] = at[i];
                          return from;
                        }),
                  exact);
      if (x.size() > 0 && x.size() < 200)
        check_gradients([&](const std::vector<Tensor>& in) { return transpose(in[0], c.axes); }, {x});
    }
  CHECK(transpose(Tensor(Shape{2, 3, 4})).shape() == Shape{2, 4, 3});
  check_fails(
      [] {
        transpose(Tensor(Shape{2, 3}), {0, 0});
      },
      "transpose: x [2,3] has 2 axes, each of which must be given once");
  check_fails([] { transpose(Tensor(Shape{2, 3}), {0}); }, "each of which must be given once");
  check_fails([] { transpose(Tensor(Shape{2, 3}), {0, 2}); }, "transpose: x [2,3] has no axis 2");
  check_fails([] { transpose(Tensor(Shape{2})); }, "transpose: x [2] does not have two axes");
}

TEST_CASE("slice: indices of any axis, and its gradient") {
  for (Device device : devices())
    for (const int axis : {0, 1, 2, -1}) {
      CAPTURE(axis);
      const Tensor x = random_tensor(Shape{4, 5, 6}, 1, -1, 1, device), y = slice(x, axis, 1, 2);
      const int at = (axis + 3) % 3;
      CHECK(y.shape()[at] == 2);
      check_close(y,
                  moved(x, y.shape(),
                        [&](std::vector<int64_t> from) {
                          ++from[static_cast<size_t>(at)];
                          return from;
                        }),
                  exact);
      check_gradients([&](const std::vector<Tensor>& in) { return slice(in[0], axis, 1, 2); }, {x});
      CHECK(slice(x, axis, x.shape()[axis], 0).size() == 0);
    }
  const Tensor x(Shape{4, 5});
  check_fails([&] { slice(x, 1, 4, 2); }, "slice: axis 1 of x [4,5] has no 2 indices from 4 on");
  check_fails([&] { slice(x, 0, -1, 2); }, "slice: axis 0 of x [4,5] has no 2 indices from -1 on");
  check_fails([&] { slice(x, 2, 0, 1); }, "slice: x [4,5] has no axis 2");
}

TEST_CASE("concat, stack: tensors behind each other along any axis, and their gradients") {
  for (Device device : devices()) {
    for (const int axis : {0, 1, -1}) {
      CAPTURE(axis);
      std::vector<Tensor> x;
      for (const int64_t size : {2, 1, 3, 0}) {
        Shape shape{3, 4, 5};
        shape = axis == 0 ? Shape{size, 4, 5} : axis == 1 ? Shape{3, size, 5} : Shape{3, 4, size};
        x.push_back(random_tensor(shape, static_cast<uint64_t>(size), -1, 1, device));
      }
      const Tensor y = concat(x, axis);
      CHECK(y.shape()[axis] == 6);
      CHECK(slice(y, axis, 0, 2).to_vector() == x[0].to_vector());
      CHECK(slice(y, axis, 2, 1).to_vector() == x[1].to_vector());
      CHECK(slice(y, axis, 3, 3).to_vector() == x[2].to_vector());
      x.pop_back();
      check_gradients([&](const std::vector<Tensor>& in) { return concat(in, axis); }, x);
      check_gradients([&](const std::vector<Tensor>& in) { return concat({in[0], in[0]}, axis); }, {x[0]});
    }
    const Tensor narrow = random_tensor(Shape{2, 5, 3, 4}, 1, -1, 1, device);
    const Tensor wide = random_tensor(Shape{2, 5, 3, 7}, 2, -1, 1, device), both = concat({narrow, wide}, -1);
    CHECK(slice(both, 3, 0, 4).to_vector() == narrow.to_vector());
    CHECK(slice(both, 3, 4, 7).to_vector() == wide.to_vector());
    const Tensor a = random_tensor(Shape{2, 3}, 1, -1, 1, device), b = random_tensor(Shape{2, 3}, 2, -1, 1, device);
    CHECK(stack({a, b}).shape() == Shape{2, 2, 3});
    CHECK(reshape(slice(stack({a, b}), 0, 1, 1), Shape{2, 3}).to_vector() == b.to_vector());
    check_gradients([](const std::vector<Tensor>& in) { return stack(in); }, {a, b});
  }
  check_fails(
      [] {
        concat({Tensor(Shape{2, 3}), Tensor(Shape{3, 3})}, 1);
      },
      "concat: [3,3] does not match [2,3] in every axis but 1");
  check_fails([] { concat({Tensor(Shape{2, 3}), Tensor(Shape{2})}, 0); }, "concat: [2] does not match [2,3]");
  check_fails([] { concat({Tensor(Shape{4}), Tensor(Shape{})}, 0); }, "concat: [] does not match [4]");
  check_fails([] { concat({Tensor(Shape{})}, -1); }, "concat: x [] has no axis -1");
  check_fails([] { concat({}, 0); }, "concat: there is no tensor");
}

TEST_CASE("broadcast, sum_to: repeated along axes, and summed over them") {
  for (Device device : devices()) {
    const Tensor x = random_tensor(Shape{3, 1, 2}, 1, -1, 1, device);
    const Tensor y = broadcast(x, Shape{2, 3, 4, 2});
    check_close(y,
                moved(x, y.shape(),
                      [](const std::vector<int64_t>& at) {
                        return std::vector<int64_t>{at[1], 0, at[3]};
                      }),
                exact);
    check_gradients([](const std::vector<Tensor>& in) { return broadcast(in[0], Shape{2, 3, 4, 2}); }, {x});
    check_gradients([](const std::vector<Tensor>& in) { return sum_to(in[0], Shape{3, 1, 2}); }, {y});
  }
  check_fails([] { sum_to(Tensor(Shape{2, 3}), Shape{2}); }, "sum_to: x [2,3] is not [2] repeated");
  check_fails([] { broadcast(Tensor(Shape{3}), Shape{2}); }, "broadcast: x [3] cannot be repeated to [2]");
  check_fails([] { broadcast(Tensor(Shape{1, 3}), Shape{3}); }, "broadcast: x [1,3] cannot be repeated to [3]");
}

TEST_CASE("gather: rows by number, and their gradients, summed where one is taken twice") {
  for (Device device : devices()) {
    const Tensor x = random_tensor(Shape{4, 2, 3}, 1, -1, 1, device);
    const Indices rows(Shape{2, 3}, {3, 0, 3, 1, 1, 3}, device);
    const Tensor y = gather(x, rows);
    CHECK(y.shape() == Shape{2, 3, 2, 3});
    check_close(
        y,
        moved(x, y.shape(),
              [&](const std::vector<int64_t>& at) {
                return std::vector<int64_t>{rows.to_vector()[static_cast<size_t>(at[0] * 3 + at[1])], at[2], at[3]};
              }),
        exact);
    check_gradients([&](const std::vector<Tensor>& in) { return gather(in[0], rows); }, {x});
    CHECK(gather(x, Indices(Shape{0}, device)).shape() == Shape{0, 2, 3});
  }
  check_fails([] { gather(Tensor(Shape{4, 2}), Indices(Shape{1}, {4})); }, "gather: there is no row 4 in x [4,2]");
  check_fails([] { gather(Tensor(Shape{}), Indices(Shape{1}, {0})); }, "gather: x [] has no rows");
}
