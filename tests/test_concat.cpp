#include "tests/check.h"

#include "ops/shapes.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Sizes {
  Shape a, b;
};
const std::vector<Sizes> sizes = {{{3, 2}, {3, 4}},          {{2, 5, 3, 4}, {2, 5, 3, 7}}, {{2, 5, 3, 4}, {5, 3, 7}},
                                  {{3, 4, 2, 3}, {6, 2, 1}}, {{2, 3, 2, 0}, {5, 2, 3}},    {{0, 3, 2}, {3, 5}},
                                  {{40, 33, 8}, {35, 20}}};

// Which row of b stands beside row r of a.
int64_t partner(const Sizes& s, int64_t r) {
  return s.b.rank() == s.a.rank() ? r : r % s.a.without_first().without_last().size();
}

}  // namespace

TEST_CASE("concat puts columns side by side, of a batch and of what it shares; gradients go back, summed") {
  for (const Device device : devices())
    for (const Sizes& s : sizes) {
      CAPTURE(s.a);
      CAPTURE(s.b);
      CAPTURE(name(device));
      const Tensor a = random_tensor(s.a, 1, -1, 1, device).set_wants_grad();
      const Tensor b = random_tensor(s.b, 2, -1, 1, device).set_wants_grad();
      Tape tape;
      const Tensor y = concat(a, b);
      const int64_t m = s.a[-1], n = s.b[-1], rows = s.a.without_last().size();
      REQUIRE_EQ(y.shape(), s.a.with_last(m + n));
      const Tensor dy = random_tensor(Shape{y.size(), 1}, 3, -1, 1, device);
      const Gradients gradients = tape.backward(weighted_sum(y, dy));
      const auto as = doubles(a), bs = doubles(b), dys = doubles(dy);
      std::vector<double> expected(dys.size()), da(as.size()), db(bs.size(), 0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < m + n; ++c) {
          const auto at = static_cast<size_t>(r * (m + n) + c), in_a = static_cast<size_t>(r * m + c),
                     in_b = static_cast<size_t>(partner(s, r) * n + c - m);
          expected[at] = c < m ? as[in_a] : bs[in_b];
          if (c < m)
            da[in_a] = dys[at];
          else
            db[in_b] += dys[at];
        }
      check_close(y, expected, exact);
      check_close(gradients.of(a), da, exact);
      check_close(gradients.of(b), db, rounding);
    }
}

TEST_CASE("concat: gradients by four-point differences") {
  for (const Device device : devices())
    check_gradients([](const auto& in) { return concat(in[0], in[1]); },
                    {random_tensor(Shape{2, 3, 4}, 1, -1, 1, device), random_tensor(Shape{5, 2}, 2, -1, 1, device)});
}

TEST_CASE("concat names what does not match") {
  const Tensor a = Tensor::full({2, 5, 4}, 0);
  check_fails([&] { concat(a, Tensor::full({4, 3}, 0)); }, "concat: b [4,3] does not match a [2,5,4]");
  check_fails([&] { concat(a, Tensor::full({2, 4, 3}, 0)); }, "concat: b [2,4,3] does not match a [2,5,4]");
  check_fails([&] { concat(a, Tensor::full({3}, 0)); }, "concat: b [3] does not match a [2,5,4]");
  check_fails([&] { concat(Tensor::full({4}, 0), Tensor::full({}, 0)); }, "concat: a [4] or b [] has no columns");
}
