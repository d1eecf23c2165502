#include "tests/check.h"

#include <cmath>

#include "engine/tape.h"
#include "ops/elementwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

using namespace runnel;
using namespace runnel::test;

TEST_CASE("gather, put_row, advance, assign: rows by an index that lies on the device") {
  for (Device device : devices()) {
    const Tensor x = random_tensor(Shape{5, 3, 11}, 1, -1, 1, device);
    const std::vector<int32_t> rows{4, 0, 4, 2};
    const Tensor y = gather(x, Indices(Shape{4}, rows, device));
    CHECK(y.shape() == Shape{4, 3, 11});
    const std::vector<float> all = x.to_vector(), some = y.to_vector();
    for (size_t i = 0; i < some.size(); ++i) CHECK_EQ(some[i], all[static_cast<size_t>(rows[i / 33]) * 33 + i % 33]);
    CHECK(gather(x, Indices(Shape{0}, device)).size() == 0);

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
  check_fails([&] { gather(x, Indices(Shape{1}, {2})); }, "gather: there is no row 2 in x [2,3]");
  Indices table(Shape{2, 3}), two(Shape{1}, {2});
  check_fails([&] { put_row(table, Indices(Shape{3}), two); }, "put_row: there is no row 2 in [2,3]");
  check_fails([&] { put_row(table, Indices(Shape{2}), two); },
              "put_row: row [2] or index [1] does not match rows [2,3]");
  check_fails([&] { assign(two, table); }, "assign: [2,3] does not match [1]");
  check_fails([&] { advance(table); }, "advance: position [2,3] is not one number");
}

TEST_CASE("shifted adds a number to each index") {
  for (const Device device : devices())
    CHECK(shifted(Indices(Shape{3}, {0, 5, 1 << 20}, device), 64).to_vector() ==
          std::vector<int32_t>{64, 69, (1 << 20) + 64});
}

TEST_CASE("zero_padding: the numbers before each length, and 0 after them, whatever stands there") {
  for (const Device device : devices()) {
    std::vector<float> numbers(3 * 5 * 14);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i + 1);
    std::vector<float> expected = numbers, gradient(numbers.size(), 2);
    const std::vector<int32_t> lengths{5, 0, 3};
    for (size_t i = 0; i < numbers.size(); ++i)
      if (static_cast<int32_t>(i / 14 % 5) >= lengths[i / 70]) expected[i] = gradient[i] = 0, numbers[i] = NAN;
    const Tensor x = Tensor(Shape{3, 5, 2, 7}, numbers, device).set_wants_grad();
    const Indices padded(Shape{3}, lengths, device);
    Tape tape;
    const Tensor y = zero_padding(x, padded);
    CHECK(y.shape() == x.shape());
    CHECK(y.to_vector() == expected);
    CHECK(tape.backward(sum(scale(y, 2))).of(x).to_vector() == gradient);
    CHECK(zero_padding(x, {}).id() == x.id());
    CHECK(zero_padding(Tensor(Shape{3, 0, 2}, device), Indices(Shape{3}, {0, 0, 0}, device)).shape() == Shape{3, 0, 2});
  }
  check_fails(
      [] {
        zero_padding(Tensor(Shape{2}), Indices(Shape{2}, {1, 1}));
      },
      "zero_padding: x [2] is not [B,L,...]");
  check_fails(
      [] {
        zero_padding(Tensor(Shape{2, 3}), Indices(Shape{1}, {1}));
      },
      "zero_padding: lengths [1] are not one number for each of 2 sequences");
  check_fails(
      [] {
        zero_padding(Tensor(Shape{2, 3}), Indices(Shape{2}, {1, 4}));
      },
      "zero_padding: length 4 of sequence 1 is not in [0, 3]");
}
