#include "tests/check.h"

#include "ops/shapes.h"

using namespace runnel;
using namespace runnel::test;

TEST_CASE("gather_rows, put_row, advance, assign: rows by an index that lies on the device") {
  for (Device device : devices()) {
    const Tensor x = random_tensor(Shape{5, 3, 11}, 1, -1, 1, device);
    const std::vector<int32_t> rows{4, 0, 4, 2};
    const Tensor y = gather_rows(x, Indices(Shape{4}, rows, device));
    CHECK(y.shape() == Shape{4, 3, 11});
    const std::vector<float> all = x.to_vector(), some = y.to_vector();
    for (size_t i = 0; i < some.size(); ++i) CHECK_EQ(some[i], all[static_cast<size_t>(rows[i / 33]) * 33 + i % 33]);
    CHECK(gather_rows(x, Indices(Shape{0}, device)).size() == 0);

    Indices table(Shape{4, 37}, std::vector<int32_t>(4 * 37, -1), device), index(Shape{1}, {1}, device);
    const Indices row = random_indices(Shape{37}, 2, 256, device);
    advance(index);
    put_row(table, row, index);
    CHECK(index.to_vector()[0] == 2);
    const std::vector<int32_t> values = table.to_vector(), put = row.to_vector();
    for (size_t i = 0; i < values.size(); ++i) CHECK_EQ(values[i], i / 37 == 2 ? put[i % 37] : -1);
    Indices copied(Shape{37}, device);
    assign(copied, row);
    CHECK(copied.to_vector() == put);
    std::vector<int32_t> counted;  // after 2, with the period 4
    for (int i = 0; i < 4; ++i) {
      advance(index, 4);
      counted.push_back(index.to_vector()[0]);
    }
    CHECK(counted == std::vector<int32_t>{3, 0, 1, 2});
  }
  const Tensor x(Shape{2, 3});
  check_fails([&] { gather_rows(x, Indices(Shape{1}, {2})); }, "gather_rows: there is no row 2 in x [2,3]");
  check_fails([&] { gather_rows(x, Indices(Shape{1, 1}, {0})); }, "have the wrong rank");
  Indices table(Shape{2, 3}), two(Shape{1}, {2});
  check_fails([&] { put_row(table, Indices(Shape{3}), two); }, "put_row: there is no row 2 in [2,3]");
  check_fails([&] { put_row(table, Indices(Shape{2}), two); },
              "put_row: row [2] or index [1] does not match rows [2,3]");
  check_fails([&] { assign(two, table); }, "assign: [2,3] does not match [1]");
  check_fails([&] { advance(table); }, "advance: position [2,3] is not one number");
}

TEST_CASE("first_positions and with_first_positions take and replace the beginning of each sequence") {
  for (const Device device : devices())
    for (const auto& [l, n] : std::vector<std::pair<int64_t, int64_t>>{{7, 3}, {7, 7}, {7, 0}, {1, 1}, {300, 40}}) {
      CAPTURE(name(device));
      CAPTURE(l);
      CAPTURE(n);
      constexpr size_t batch = 3, width = 2 * 5;
      const Tensor x = random_tensor(Shape{batch, l, 2, 5}, 1, -1, 1, device);
      const Tensor first = random_tensor(Shape{batch, n, 2, 5}, 2, -1, 1, device);
      const Tensor taken = first_positions(x, n), replaced = with_first_positions(x, first);
      CHECK_EQ(taken.shape(), first.shape());
      CHECK_EQ(replaced.shape(), x.shape());
      const std::vector<float> xs = x.to_vector(), firsts = first.to_vector();
      std::vector<float> some, all;
      const size_t row = static_cast<size_t>(l) * width, part = static_cast<size_t>(n) * width;
      for (size_t b = 0; b < batch; ++b)
        for (size_t i = 0; i < row; ++i) {
          if (i < part) some.push_back(xs[b * row + i]);
          all.push_back(i < part ? firsts[b * part + i] : xs[b * row + i]);
        }
      CHECK(taken.to_vector() == some);
      CHECK(replaced.to_vector() == all);
    }
}

TEST_CASE("first_positions and with_first_positions: four-point gradients, empty batches and errors") {
  for (const Device device : devices()) {
    const Tensor x = random_tensor(Shape{2, 5, 3}, 1, -1, 1, device);
    const Tensor first = random_tensor(Shape{2, 2, 3}, 2, -1, 1, device);
    check_gradients([](const auto& in) { return first_positions(in[0], 2); }, {x});
    check_gradients([](const auto& in) { return with_first_positions(in[0], in[1]); }, {x, first});
    const Tensor empty(Shape{0, 5, 3}, device);
    CHECK_EQ(first_positions(empty, 2).shape(), Shape{0, 2, 3});
    CHECK_EQ(with_first_positions(empty, first_positions(empty, 2)).shape(), empty.shape());
  }
  const Tensor x(Shape{2, 5, 3});
  check_fails([&] { first_positions(x, 6); }, "first_positions: there are no first 6 positions in x [2,5,3]");
  check_fails([&] { first_positions(x, -1); }, "first_positions: there are no first -1 positions in x [2,5,3]");
  for (const Shape& shape : {Shape{2, 6, 3}, Shape{3, 5, 3}, Shape{2, 5, 4}, Shape{2, 5}, Shape{2}})
    check_fails([&] { with_first_positions(x, Tensor(shape)); }, "is not made of positions of x [2,5,3]");
}

TEST_CASE("shifted adds a number to each index") {
  for (const Device device : devices())
    CHECK(shifted(Indices(Shape{3}, {0, 5, 1 << 20}, device), 64).to_vector() ==
          std::vector<int32_t>{64, 69, (1 << 20) + 64});
}
