#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

TEST_CASE("gather_rows, put_row, advance: rows by an index that lies on the device") {
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
    DISPATCH(device, advance(index.data()));
    DISPATCH(device, put_row(table.data(), row.data(), index.data(), 37));
    CHECK(index.to_vector()[0] == 2);
    const std::vector<int32_t> values = table.to_vector(), put = row.to_vector();
    for (size_t i = 0; i < values.size(); ++i) CHECK_EQ(values[i], i / 37 == 2 ? put[i % 37] : -1);
  }
  const Tensor x(Shape{2, 3});
  check_fails([&] { gather_rows(x, Indices(Shape{1}, {2})); }, "gather_rows: there is no row 2 in x [2,3]");
  check_fails([&] { gather_rows(x, Indices(Shape{1, 1}, {0})); }, "have the wrong rank");
}
