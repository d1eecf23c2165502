#include "tests/check.h"

#include "ops/sums.h"

using namespace runnel;
using namespace runnel::test;

TEST_CASE("mean_positions: the mean over each sequence without its padding, and its gradient") {
  for (const Device device : devices())
    for (const int64_t d : {1, 33, 70}) {
      constexpr int64_t batch = 3, length = 21;
      const Tensor x = random_tensor(Shape{batch, length, d}, 1, -1, 1, device);
      const std::vector<int32_t> valid{21, 5, 0};
      for (const bool padded : {false, true}) {
        const Indices lengths = padded ? Indices(Shape{batch}, valid, device) : Indices();
        std::vector<double> expected(static_cast<size_t>(batch * d)), all = doubles(x);
        for (int64_t b = 0; b < batch; ++b) {
          const int64_t n = padded ? valid[static_cast<size_t>(b)] : length;
          for (int64_t l = 0; l < n; ++l)
            for (int64_t j = 0; j < d; ++j)
              expected[static_cast<size_t>(b * d + j)] +=
                  all[static_cast<size_t>((b * length + l) * d + j)] / static_cast<double>(n);
        }
        check_close(mean_positions(x, lengths), expected, reduction);
        check_gradients([&](const std::vector<Tensor>& in) { return mean_positions(in[0], lengths); }, {x});
      }
    }
  const Tensor x(Shape{2, 3, 4});
  check_fails([&] { mean_positions(Tensor(Shape{2, 3}), {}); }, "mean_positions: x [2,3] is not [B,L,D]");
  check_fails([&] { mean_positions(x, Indices(Shape{1}, {2})); }, "are not one number for each of 2 sequences");
  check_fails(
      [&] {
        mean_positions(x, Indices(Shape{2}, {2, 4}));
      },
      "mean_positions: length 4 of sequence 1 is not in [0, 3]");
}

TEST_CASE("pair_features: both vectors, their product and their difference, and the gradient") {
  for (const Device device : devices()) {
    constexpr int64_t pairs = 3, d = 19;
    const Tensor x = random_tensor(Shape{2 * pairs, d}, 1, -1, 1, device);
    const std::vector<double> all = doubles(x);
    std::vector<double> expected;
    for (int64_t i = 0; i < pairs; ++i)
      for (int64_t feature = 0; feature < 4; ++feature)
        for (int64_t j = 0; j < d; ++j) {
          const double a = all[static_cast<size_t>(2 * i * d + j)], b = all[static_cast<size_t>((2 * i + 1) * d + j)];
          expected.push_back(feature == 0 ? a : feature == 1 ? b : feature == 2 ? a * b : a - b);
        }
    check_close(pair_features(x), expected, reduction);
    check_gradients([](const std::vector<Tensor>& in) { return pair_features(in[0]); }, {x});
  }
  check_fails([] { pair_features(Tensor(Shape{3, 2})); }, "pair_features: x [3,2] is not [2B,D]");
}
