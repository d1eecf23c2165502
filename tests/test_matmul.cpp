#include "ops/linear.h"
#include "ops/numerics.h"
#include "ops/shapes.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<double> reference(const Tensor& a, const Tensor& b, bool ta, bool tb, int64_t m, int64_t n, int64_t k) {
  const auto x = doubles(a), y = doubles(b);
  std::vector<double> c(static_cast<size_t>(m * n), 0);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        c[static_cast<size_t>(i * n + j)] +=
            x[static_cast<size_t>(ta ? l * m + i : i * k + l)] * y[static_cast<size_t>(tb ? j * k + l : l * n + j)];
  return c;
}

}  // namespace

TEST_CASE("matmul equals the triple loop with either operand transposed") {
  for (const Device device : devices())
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {3, 31, 33}, {65, 1, 3}, {33, 65, 31}, {2, 3, 0}})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          CAPTURE(ta);
          CAPTURE(tb);
          const Tensor a = random_tensor(ta ? Shape{k, m} : Shape{m, k}, 1, -1, 1, device);
          const Tensor b = random_tensor(tb ? Shape{n, k} : Shape{k, n}, 2, -1, 1, device);
          check_close(matmul(a, b, ta, tb), reference(a, b, ta, tb, m, n, k), rounding);
        }
}

TEST_CASE("matmul's gradients, with either operand transposed") {
  for (const Device device : devices())
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        check_gradients([&](const auto& x) { return matmul(x[0], x[1], ta, tb); },
                        {random_tensor(ta ? Shape{5, 3} : Shape{3, 5}, 1, -1, 1, device),
                         random_tensor(tb ? Shape{4, 5} : Shape{5, 4}, 2, -1, 1, device)});
}

TEST_CASE("matmul of several matrices, or of several with one: values and gradients") {
  struct Case {
    Shape a, b, c;
  };
  for (const Device device : devices())
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const Case& s : {Case{{2, 3, 4, 5}, {2, 3, 5, 6}, {2, 3, 4, 6}}, Case{{7, 4, 5}, {5, 6}, {7, 4, 6}},
                              Case{{4, 5}, {7, 5, 6}, {7, 4, 6}}, Case{{1, 4, 5}, {1, 5, 6}, {1, 4, 6}},
                              Case{{0, 4, 5}, {0, 5, 6}, {0, 4, 6}}}) {
          CAPTURE(ta);
          CAPTURE(tb);
          CAPTURE(s.a);
          CAPTURE(s.b);
          Tensor a = random_tensor(s.a, 1, -1, 1, device), b = random_tensor(s.b, 2, -1, 1, device);
          if (ta) a = transpose(a);
          if (tb) b = transpose(b);
          const Tensor c = matmul(a, b, ta, tb);
          REQUIRE(c.shape() == s.c);
          const int64_t matrices = s.c.size() / 24, size_a = s.a.rank() == 2 ? 0 : 20,
                        size_b = s.b.rank() == 2 ? 0 : 30;
          for (int64_t i = 0; i < matrices; ++i)
            check_close(c.part(i * 24, Shape{4, 6}),
                        reference(a.part(i * size_a, Shape{20}), b.part(i * size_b, Shape{30}), ta, tb, 4, 6, 5),
                        rounding);
          if (matrices > 0) check_gradients([&](const auto& x) { return matmul(x[0], x[1], ta, tb); }, {a, b});
        }
  check_fails(
      [] {
        matmul(Tensor(Shape{2, 4, 5}), Tensor(Shape{3, 5, 6}));
      },
      "matmul: a [2,4,5] and b [3,5,6] are not equally many matrices");
}

TEST_CASE("matmul on tensor cores rounds its operands to the precision that is set, and adds in float32") {
  if (!cuda_is_emulated()) return;  // a GPU's library may round less than it is allowed to
  for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16}) {
    set_precision(precision, Device::cuda);
    const Tensor a = Tensor::full(Shape{16, 8}, 1 + 0x1p-12f, Device::cuda);
    const Tensor b = Tensor::full(Shape{8, 16}, 1, Device::cuda);
    const float product = precision == Precision::f32 ? 8 + 0x1p-9f : 8;
    CHECK(matmul(a, b).to_vector() == std::vector<float>(16 * 16, product));
  }
  set_precision(Precision::f32);
}

TEST_CASE("matmul names the shapes that do not match") {
  const Tensor a = random_tensor(Shape{2, 3}, 1);
  check_fails([&] { matmul(a, random_tensor(Shape{4, 5}, 2)); }, "matmul: a [2,3] does not match b [4,5]");
  check_fails([&] { matmul(a, random_tensor(Shape{3}, 2)); }, "matmul: a [2,3] or b [3] is not a matrix");
}
