#include <algorithm>

#include "ops/linear_attention.h"
#include "ops/lra/attention.h"
#include "ops/softmax_attention.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<double> reference(const Tensor& x, const Tensor& projection) {
  const auto numbers = doubles(x), w = doubles(projection);
  const auto e = static_cast<size_t>(x.shape()[-1]), features = static_cast<size_t>(projection.shape()[0]);
  const double scale = std::pow(static_cast<double>(e), -0.25);
  std::vector<double> y;
  for (size_t row = 0; row < numbers.size(); row += e)
    for (size_t c = 0; c < features; ++c) {
      double dot = 0, squares = 0;
      for (size_t i = 0; i < e; ++i) {
        dot += scale * numbers[row + i] * w[c * e + i];
        squares += scale * scale * numbers[row + i] * numbers[row + i];
      }
      y.push_back(std::exp(dot - squares / 2) / std::sqrt(static_cast<double>(features)));
    }
  return y;
}

double mean_square(const std::vector<double>& x) {
  double sum = 0;
  for (const double number : x) sum += number * number;
  return sum / static_cast<double>(x.size());
}

}  // namespace

TEST_CASE("positive_random_features equals its definition") {
  for (const Device device : devices())
    for (const auto& [rows, features, e] :
         {std::array<int64_t, 3>{1, 1, 1}, {3, 7, 5}, {2, 100, 33}, {5, 31, 4}, {300, 65, 2}, {0, 3, 2}}) {
      CAPTURE(rows);
      CAPTURE(features);
      const Tensor x = random_tensor(Shape{rows, 1, e}, 1, -2, 2, device);
      const Tensor w = random_projection(features, e, Key{2}, device);
      const Tensor y = positive_random_features(x, w);
      CHECK(y.shape() == Shape{rows, 1, features});
      check_close(y, reference(x, w), reduction);
    }
}

TEST_CASE("positive_random_features's gradients by four-point differences") {
  for (const Device device : devices())
    for (const auto& [features, e] : {std::array<int64_t, 2>{6, 3}, {40, 9}}) {
      const Tensor w = random_projection(features, e, Key{2}, device);
      check_gradients([&w](const auto& in) { return positive_random_features(in[0], w); },
                      {random_tensor(Shape{2, e}, 1, -1, 1, device)});
    }
}

TEST_CASE("positive_random_features overflows nowhere") {
  constexpr int64_t e = 64, features = 256;
  for (const Device device : devices()) {
    const Tensor w = random_projection(features, e, Key{2}, device);
    // Every number 5, random numbers to 5, and where the exponent is largest: at the rows of the projection.
    std::vector<float> x(static_cast<size_t>(e), 5.0f);
    const auto random = random_tensor(Shape{20, e}, 3, -5, 5).to_vector(), largest = w.to_vector();
    x.insert(x.end(), random.begin(), random.end());
    for (const float number : largest) x.push_back(number * std::pow(static_cast<float>(e), 0.25f));
    const Tensor y = positive_random_features(Tensor(Shape{21 + features, e}, x, device), w);
    const auto values = y.to_vector();
    CHECK(std::all_of(values.begin(), values.end(), [](float value) { return value >= 0 && std::isfinite(value); }));
  }
}

TEST_CASE("random_projection has orthogonal blocks of rows as long as normal ones") {
  constexpr int64_t e = 16, features = 16 * 40 + 5;
  const auto w = doubles(random_projection(features, e, Key{1}));
  const auto dot = [&w](int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t i = 0; i < e; ++i) sum += w[static_cast<size_t>(a * e + i)] * w[static_cast<size_t>(b * e + i)];
    return sum;
  };
  double farthest = 0;
  for (int64_t a = 0; a < features; ++a)
    for (int64_t b = a / e * e; b < a; ++b) farthest = std::max(farthest, std::abs(dot(a, b)));
  CHECK_LE(farthest, rounding * e);
  // |w|^2 is E on average with variance 2 E: over 645 rows, 16 +- 0.22 and 32 +- 2.7.
  double mean = 0, variance = 0;
  for (int64_t a = 0; a < features; ++a) mean += dot(a, a) / features;
  for (int64_t a = 0; a < features; ++a) variance += (dot(a, a) - mean) * (dot(a, a) - mean) / features;
  CHECK(mean == doctest::Approx(16).epsilon(0.05));
  CHECK(variance == doctest::Approx(32).epsilon(0.3));
  CHECK(random_projection(features, e, Key{1}).to_vector() == random_projection(features, e, Key{1}).to_vector());
  CHECK(random_projection(features, e, Key{1}).to_vector() != random_projection(features, e, Key{2}).to_vector());
}

TEST_CASE("linear attention on positive random features approaches softmax attention") {
  const Shape shape{2, 12, 2, 4};
  for (const Device device : devices()) {
    const Tensor q = random_tensor(shape, 1, -1, 1, device), k = random_tensor(shape, 2, -1, 1, device);
    const Tensor v = random_tensor(shape, 3, -1, 1, device);
    const auto causal = doubles(softmax_attention(q, k, v)),
               full = doubles(softmax_attention(q, k, v, {.causal = false}));
    const auto error = [&](int64_t features) {
      const Tensor w = random_projection(features, 4, Key{4}, device);
      const Tensor q_features = positive_random_features(q, w), k_features = positive_random_features(k, w);
      auto y = doubles(linear_attention(q_features, k_features, v, {.causal = true}, FeatureMap::identity));
      auto y_full = doubles(linear_attention(q_features, k_features, v, {.causal = false}, FeatureMap::identity));
      for (size_t i = 0; i < y.size(); ++i) y[i] -= causal[i], y_full[i] -= full[i];
      return std::max(std::sqrt(mean_square(y)), std::sqrt(mean_square(y_full)));
    };
    // A weight e^(q . k) is estimated with a standard deviation of some 1.6 / sqrt(F) of itself, 3.5% at F = 2048,
    // which the mean over keys brings down further; v is at most 1. On CUDA, F is limited by the memory of a
    // multiprocessor.
    const int64_t most = device == Device::cpu ? 2048 : 256;
    const double few = error(most / 64), many = error(most);
    CHECK_LE(many, 0.9 / std::sqrt(static_cast<double>(most)));  // 0.02 with 2048
    CHECK_LE(many, few / 3);                                     // it should be an eighth
  }
}

TEST_CASE("the gradient goes through positive random features and linear attention") {
  for (const Device device : devices()) {
    const Tensor w = random_projection(8, 3, Key{4}, device);
    const Shape shape{1, 3, 1, 3};
    check_gradients(
        [&w](const auto& in) {
          return linear_attention(positive_random_features(in[0], w), positive_random_features(in[1], w), in[2],
                                  {.causal = true}, FeatureMap::identity);
        },
        {random_tensor(shape, 1, -1, 1, device), random_tensor(shape, 2, -1, 1, device),
         random_tensor(shape, 3, -1, 1, device)});
  }
}

TEST_CASE("positive_random_features names the shapes that do not match") {
  check_fails(
      [] {
        positive_random_features(random_tensor(Shape{2, 3}, 1), random_tensor(Shape{5, 4}, 2));
      },
      "positive_random_features: projection [5,4] is not [F,3] as x [2,3] asks for");
  check_fails(
      [] {
        positive_random_features(random_tensor(Shape{2, 3}, 1), random_tensor(Shape{3}, 2));
      },
      "projection [3] is not [F,3]");
  check_fails([] { random_projection(0, 3, Key{1}); }, "random_projection: [0,3] has no numbers");
}
