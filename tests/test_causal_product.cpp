#include "tests/check.h"

#include "ops/linear_attention.h"
#include "ops/shapes.h"

using namespace runnel;
using namespace runnel::test;

TEST_CASE("causal_product equals its definition, sum_{j<=i} (q_i . k_j) v_j") {
  for (const Device device : devices())
    for (const auto& [b, l, h, e, m] : {std::array<int64_t, 5>{1, 1, 1, 1, 1},
                                        {2, 31, 3, 5, 7},
                                        {1, 65, 2, 33, 3},
                                        {3, 4, 1, 1, 31},
                                        {1, 35, 2, 70, 40},
                                        {2, 0, 1, 3, 3}}) {
      CAPTURE(l);
      CAPTURE(e);
      CAPTURE(m);
      const Tensor q = random_tensor(Shape{b, l, h, e}, 1, -1, 1, device);
      const Tensor k = random_tensor(Shape{b, l, h, e}, 2, -1, 1, device);
      const Tensor v = random_tensor(Shape{b, l, h, m}, 3, -1, 1, device);
      const auto dq = doubles(q), dk = doubles(k), dv = doubles(v);
      std::vector<double> y(static_cast<size_t>(v.size()), 0);
      const auto at = [&, h = h, l = l](int64_t n, int64_t i, int64_t j, int64_t width, int64_t c) {
        return static_cast<size_t>(((n * l + i) * h + j) * width + c);
      };
      for (int64_t n = 0; n < b; ++n)
        for (int64_t head = 0; head < h; ++head)
          for (int64_t i = 0; i < l; ++i)
            for (int64_t j = 0; j <= i; ++j) {
              double dot = 0;
              for (int64_t c = 0; c < e; ++c) dot += dq[at(n, i, head, e, c)] * dk[at(n, j, head, e, c)];
              for (int64_t c = 0; c < m; ++c) y[at(n, i, head, m, c)] += dot * dv[at(n, j, head, m, c)];
            }
      check_close(causal_product(q, k, v), y, reduction);
    }
}

TEST_CASE("causal_product's gradients") {
  for (const Device device : devices())
    check_gradients(
        [](const auto& x) { return causal_product(x[0], x[1], x[2]); },
        {random_tensor(Shape{2, 5, 3, 4}, 1, -1, 1, device), random_tensor(Shape{2, 5, 3, 4}, 2, -1, 1, device),
         random_tensor(Shape{2, 5, 3, 2}, 3, -1, 1, device)});
}

TEST_CASE("causal_product keeps nothing but its inputs and output, and its extra memory does not grow with L") {
  for (const Device device : devices()) {
    const auto extra = [device](int64_t l) {
      Tensor q = random_tensor(Shape{1, l, 2, 8}, 1, -1, 1, device);
      const Tensor k = random_tensor(Shape{1, l, 2, 8}, 2, -1, 1, device);
      const Tensor v = random_tensor(Shape{1, l, 2, 8}, 3, -1, 1, device);
      q.set_wants_grad();
      reset_peak(device);
      const int64_t before = memory_use(device).live;
      Tape tape;
      const Tensor y = causal_product(q, k, v);
      const int64_t kept = memory_use(device).live - before;
      CHECK_EQ(kept, y.size() * static_cast<int64_t>(sizeof(float)));
      return memory_use(device).peak - before - kept;
    };
    CHECK_EQ(extra(64), extra(4096));
  }
}

TEST_CASE("causal_product names the shapes that do not match") {
  const Tensor q = random_tensor(Shape{2, 8, 3, 5}, 1);
  check_fails(
      [&] {
        causal_product(q, q, random_tensor(Shape{2, 7, 3, 4}, 2));
      },
      "causal_product: v [2,7,3,4] does not match k [2,8,3,5]");
  check_fails(
      [&] {
        causal_product(q, random_tensor(Shape{2, 8, 3, 4}, 2), q);
      },
      "causal_product: k [2,8,3,4] does not match q [2,8,3,5]");
  check_fails([&] { causal_product(reshape(q, Shape{6, 8, 5}), q, q); }, "is not [B,L,H,E]");
}
