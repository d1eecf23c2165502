#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

double reference(const std::vector<double>& z, const std::vector<int32_t>& targets, const std::vector<double>& mask) {
  const size_t rows = targets.size(), v = z.size() / rows;
  double total = 0, weight = 0;
  for (size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (size_t i = 0; i < v; ++i) sum += std::exp(z[r * v + i] - z[r * v]);
    total += mask[r] * (std::log(sum) + z[r * v] - z[r * v + static_cast<size_t>(targets[r])]);
    weight += mask[r];
  }
  return total / weight;
}

}  // namespace

TEST_CASE("cross_entropy is the masked mean of -log softmax") {
  for (Device device : devices())
    for (int64_t v : {1, 3, 11, 65, 257})
      for (int64_t rows : {1, 31, 66}) {
        CAPTURE(v);
        CAPTURE(rows);
        const Tensor logits = random_tensor(Shape{rows, v}, 1, -5, 5, device);
        const Indices targets = random_indices(Shape{rows}, 2, static_cast<uint32_t>(v), device);
        const Tensor mask = random_tensor(Shape{rows}, 3, 0, 2, device);
        check_close(cross_entropy(logits, targets, mask),
                    {reference(doubles(logits), targets.to_vector(), doubles(mask))}, rounding);
        check_close(
            cross_entropy(logits, targets),
            {reference(doubles(logits), targets.to_vector(), std::vector<double>(targets.to_vector().size(), 1))},
            rounding);
      }
}

TEST_CASE("cross_entropy: gradients, and none where the mask is zero") {
  for (Device device : devices()) {
    const Indices targets = random_indices(Shape{3, 5}, 2, 7, device);
    const Tensor mask(Shape{3, 5}, {1, 0, 1, 1, 0, 0, 0, 2, 1, 1, 0, 1, 1, 0, 1}, device);
    check_gradients([&](const std::vector<Tensor>& x) { return cross_entropy(x[0], targets, mask); },
                    {random_tensor(Shape{3, 5, 7}, 1, -2, 2, device)}, 0.05);
    check_gradients([&](const std::vector<Tensor>& x) { return scale(cross_entropy(x[0], targets), 15); },
                    {random_tensor(Shape{3, 5, 7}, 1, -2, 2, device)}, 0.05);

    const Tensor logits = random_tensor(Shape{3, 5, 7}, 1, -2, 2, device).set_wants_grad();
    Tape tape;
    const auto dlogits = tape.backward(cross_entropy(logits, targets, mask)).of(logits).to_vector();
    for (size_t i = 0; i < 7; ++i) CHECK(dlogits[7 + i] == 0);
  }
}

TEST_CASE("cross_entropy takes logits whose exponentials overflow, and minus infinity for the impossible") {
  for (Device device : devices()) {
    const Tensor large(Shape{2, 3}, {1000, 999, -1000, -2000, -2001, -INFINITY}, device);
    check_close(cross_entropy(large, Indices(Shape{2}, {1, 0}, device)), {0.5 + std::log1p(std::exp(-1))}, rounding);
  }
}

TEST_CASE("cross_entropy says what does not fit") {
  const Tensor logits = random_tensor(Shape{2, 3, 4}, 1);
  check_fails(
      [&] {
        cross_entropy(logits, Indices(Shape{2, 4}, std::vector<int32_t>(8)));
      },
      "cross_entropy: targets [2,4] do not match logits [2,3,4]");
  check_fails([&] { cross_entropy(logits, Indices(Shape{2, 3}, {0, 1, 2, 3, 4, 0})); }, "target 4 is not in [0, 4)");
  check_fails([&] { cross_entropy(logits, Indices(Shape{2, 3}, {0, 1, 2, 3, -1, 0})); }, "target -1 is not in [0, 4)");
  check_fails(
      [&] {
        cross_entropy(logits, Indices(Shape{2, 3}, std::vector<int32_t>(6)), random_tensor(Shape{6}, 1));
      },
      "mask [6] does not match targets [2,3]");
}
