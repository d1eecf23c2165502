#include "tests/check.h"

#include "ops/reductions.h"

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
