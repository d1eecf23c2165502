#include <algorithm>

#include "ops/losses.h"
#include "ops/reductions.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// P(byte) as it is defined: a weighted sum of differences of sigmoids, taken on the side where they are small.
double probability(const double* params, size_t k, int byte, double temperature = 1) {
  double total = 0, p = 0;
  for (size_t i = 0; i < k; ++i) total += std::exp((params[i] - params[0]) / temperature);
  for (size_t i = 0; i < k; ++i) {
    const double scale = temperature * std::exp(std::max(params[2 * k + i], -7.0));
    const double a = byte == 0 ? -INFINITY : ((2 * byte - 256) / 255.0 - params[k + i]) / scale;
    const double b = byte == 255 ? INFINITY : ((2 * byte - 254) / 255.0 - params[k + i]) / scale;
    const double inside = a + b > 0 ? sigmoid(-a) - sigmoid(-b) : sigmoid(b) - sigmoid(a);
    p += std::exp((params[i] - params[0]) / temperature) / total * inside;
  }
  return p;
}

// K logits, K means and K log-scales per row, each in its range.
std::vector<float> random_params(int64_t rows, int64_t k, uint64_t seed, float mean, float low, float high) {
  std::vector<float> params;
  const Key key{seed};
  for (int64_t i = 0; i < rows * 3 * k; ++i) {
    const float u = key.uniform(static_cast<uint64_t>(i));
    const int64_t part = i / k % 3;
    params.push_back(part == 0 ? 4 * u - 2 : part == 1 ? mean * (2 * u - 1) : low + (high - low) * u);
  }
  return params;
}

Indices all_bytes(Device device) {
  std::vector<int32_t> bytes(256);
  for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<int32_t>(i);
  return Indices(Shape{256}, bytes, device);
}

// The same parameters for each of the 256 bytes.
Tensor repeated(const std::vector<float>& row, Device device) {
  std::vector<float> values;
  for (int byte = 0; byte < 256; ++byte) values.insert(values.end(), row.begin(), row.end());
  return Tensor(Shape{256, static_cast<int64_t>(row.size())}, values, device);
}

// Whether a row of K logits, K means and K log-scales gives this byte: u chooses the component and v the place in it,
// but for rounding, in which devices differ.
bool is_drawn_at(double u, double v, const float* params, size_t k, int32_t byte) {
  double total = 0, after = 0;
  for (size_t i = 0; i < k; ++i) total += std::exp(static_cast<double>(params[i] - params[0]));
  for (size_t i = 0; i < k; ++i) {
    const double before = after, scale = std::exp(std::max(static_cast<double>(params[2 * k + i]), -7.0));
    after += std::exp(static_cast<double>(params[i] - params[0])) / total;
    if (u < before - reduction || u > after + reduction) continue;
    const double place = (static_cast<double>(params[k + i]) + scale * std::log(v / (1 - v)) + 1) * 127.5;
    if (std::abs(std::clamp(place, 0.0, 255.0) - byte) <= 0.5 + 127.5 * reduction) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("logistic_mixture_nll: a very large scale is finite and right, with its gradient") {
  // For a width d of a bin in units of the scale, p = d / 4 / cosh^2(..) -> d / 4: nll = log_scale - log(2 / 255) +
  // log 4.
  for (Device device : devices())
    for (const float log_scale : {8.0f, 9.5f, 30.0f, 87.0f, 100.0f, 1000.0f}) {
      CAPTURE(log_scale);
      Tensor params(Shape{3, 6},
                    {0.3f, -0.2f, 0, 0.1f, log_scale, log_scale, 0.3f, -0.2f, 0, 0.1f, log_scale, log_scale, 0.3f,
                     -0.2f, 0, 0.1f, log_scale, log_scale},
                    device);
      params.set_wants_grad();
      Tape tape;
      const Tensor nll = logistic_mixture_nll(params, Indices(Shape{3}, {77, 0, 255}, device));
      const double middle = log_scale - std::log(2 / 255.0) + std::log(4);
      const double s = std::exp(-std::min(static_cast<double>(log_scale), 700.0));
      const double tail = -std::log(sigmoid((1 / 255.0 - 1) * s));  // the means do not matter at these scales
      CHECK_LE(distance(doubles(nll), {middle, tail, tail}), 1e-4);
      const std::vector<double> g = doubles(tape.backward(sum(nll)).of(params));
      for (size_t i = 0; i < 18; ++i) CHECK(std::isfinite(g[i]));
      CHECK(g[4] + g[5] == doctest::Approx(1).epsilon(1e-3));  // dnll/dlog_scale of the byte in the middle
      CHECK(std::abs(g[10]) < 1e-3);
    }
}

TEST_CASE("logistic_mixture_nll is -log of the difference of sigmoids, for every byte, and of the tails at the ends") {
  for (Device device : devices())
    for (int64_t k : {1, 3, 10})
      for (float log_scale : {-6.0f, -3.0f, 0.0f, 3.0f}) {
        CAPTURE(k);
        CAPTURE(log_scale);
        const auto row = random_params(1, k, 5, 1.2f, log_scale - 1, log_scale + 1);
        const std::vector<double> params(row.begin(), row.end());
        std::vector<double> nll;
        for (int byte = 0; byte < 256; ++byte)
          nll.push_back(-std::log(probability(params.data(), static_cast<size_t>(k), byte)));
        check_close(logistic_mixture_nll(repeated(row, device), all_bytes(device)), nll, rounding);
      }
}

TEST_CASE("logistic_mixture: the 256 probabilities sum to 1") {
  for (Device device : devices())
    for (float log_scale : {-30.0f, -7.0f, -5.0f, -1.0f, 2.0f, 8.0f})
      for (float mean : {0.0f, 1.0f, 4.0f}) {
        CAPTURE(log_scale);
        CAPTURE(mean);
        const auto row = random_params(1, 10, 6, mean, log_scale - 0.5f, log_scale + 0.5f);
        double total = 0;
        for (const float nll : logistic_mixture_nll(repeated(row, device), all_bytes(device)).to_vector())
          total += std::exp(-static_cast<double>(nll));
        CHECK(std::abs(total - 1) <= reduction);
      }
}

TEST_CASE("logistic_mixture: gradients") {
  for (Device device : devices())
    for (int64_t k : {1, 10}) {
      const Tensor params(Shape{3, 5, 3 * k}, random_params(15, k, 7, 1, -1.5f, 0.5f), device);
      const Indices bytes(Shape{3, 5}, {0, 255, 1, 254, 7, 128, 127, 33, 65, 0, 255, 200, 90, 3, 31}, device);
      check_gradients([&](const std::vector<Tensor>& x) { return logistic_mixture_nll(x[0], bytes); }, {params});
    }
}

// Where a component is narrower than any step that float differences allow, and in its far tails.
TEST_CASE("logistic_mixture: gradients of narrow components equal those of the definition in double") {
  for (Device device : devices())
    for (float log_scale : {-6.5f, -4.0f, 3.0f}) {
      CAPTURE(log_scale);
      const size_t k = 3;
      const auto row = random_params(1, 3, 8, 1.1f, log_scale - 0.4f, log_scale + 0.4f);
      const Tensor params = repeated(row, device).set_wants_grad();
      Tape tape;
      const Tensor total = sum(logistic_mixture_nll(params, all_bytes(device)));
      const auto gradient = doubles(tape.backward(total).of(params));

      std::vector<double> expected, actual;
      for (int byte = 0; byte < 256; ++byte) {
        std::vector<double> x(row.begin(), row.end());
        if (!(probability(x.data(), k, byte) > 1e-250)) continue;  // the definition underflows, the op does not
        for (size_t i = 0; i < x.size(); ++i) {
          const double at = x[i], h = 1e-6;
          x[i] = at + h;
          const double above = std::log(probability(x.data(), k, byte));
          x[i] = at - h;
          const double below = std::log(probability(x.data(), k, byte));
          x[i] = at;
          expected.push_back(-(above - below) / (2 * h));
          actual.push_back(gradient[static_cast<size_t>(byte) * x.size() + i]);
        }
      }
      CHECK(expected.size() > 1000);
      CHECK_LE(distance(actual, expected), reduction);
    }
}

TEST_CASE("logistic_mixture: log-scales below -7 count as -7 and get no gradient") {
  for (Device device : devices()) {
    Tensor narrow(Shape{2, 3}, {0, 0.1f, -9, 0, 0.1f, -7}, device);
    narrow.set_wants_grad();
    const Indices bytes(Shape{2}, {140, 140}, device);
    Tape tape;
    const Tensor nll = logistic_mixture_nll(narrow, bytes);
    CHECK(nll.to_vector()[0] == nll.to_vector()[1]);
    const auto gradient = tape.backward(sum(nll)).of(narrow).to_vector();
    CHECK(gradient[2] == 0);
    CHECK(gradient[5] != 0);
    CHECK(gradient[1] == gradient[4]);
  }
}

TEST_CASE("logistic_mixture_sample draws from the distribution of the loss, at any temperature") {
  const int64_t draws = 200000, k = 4;
  std::vector<Key> keys;
  for (int64_t i = 0; i < draws; ++i) keys.push_back(Key{99}.fold(static_cast<uint64_t>(i)));
  for (Device device : devices())
    for (float temperature : {1.0f, 0.5f, 1.7f})
      for (float log_scale : {-7.5f, -4.0f, -1.0f, 1.0f}) {
        CAPTURE(temperature);
        CAPTURE(log_scale);
        const auto row = random_params(1, k, 9, 0.9f, log_scale, log_scale + 1);
        const std::vector<double> params(row.begin(), row.end());
        std::vector<float> values;
        for (int64_t i = 0; i < draws; ++i) values.insert(values.end(), row.begin(), row.end());
        std::vector<double> probabilities;
        for (int byte = 0; byte < 256; ++byte)
          probabilities.push_back(probability(params.data(), k, byte, temperature));
        check_frequencies(logistic_mixture_sample(Tensor(Shape{draws, 3 * k}, values, device),
                                                  Keys(Shape{draws}, keys, device), temperature)
                              .to_vector(),
                          probabilities);
      }
}

TEST_CASE("logistic_mixture: nothing in, nothing out; a row draws what its key says, whatever is beside it") {
  CHECK(logistic_mixture_nll(Tensor(Shape{0, 30}), Indices(Shape{0})).size() == 0);
  CHECK(logistic_mixture_sample(Tensor(Shape{0, 30}), Keys(Shape{0})).size() == 0);
  const std::vector<float> values = random_params(33, 10, 4, 1, -3, 0);
  std::vector<Key> keys;
  for (uint64_t i = 0; i < 33; ++i) keys.push_back(Key{i});
  const std::vector<float> tenth(values.begin() + 300, values.begin() + 330);
  for (Device device : devices()) {
    const Tensor params(Shape{33, 30}, values, device);
    const Keys of_rows(Shape{33}, keys, device);
    const auto all = logistic_mixture_sample(params, of_rows).to_vector();
    CHECK(logistic_mixture_sample(Tensor(Shape{1, 30}, tenth, device), Keys(Shape{1}, {keys[10]}, device))
              .to_vector()[0] == all[10]);
    const auto folded = logistic_mixture_sample(params, of_rows, 1, Indices(Shape{1}, {7}, device)).to_vector();
    CHECK(logistic_mixture_sample(Tensor(Shape{1, 30}, tenth, device), Keys(Shape{1}, {keys[10].fold(7)}, device))
              .to_vector()[0] == folded[10]);
    for (size_t r = 0; r < 33; ++r) {
      const Key key = keys[r].fold(7);
      CHECK(is_drawn_at(keys[r].uniform(0), keys[r].uniform(1), &values[30 * r], 10, all[r]));
      CHECK(is_drawn_at(key.uniform(0), key.uniform(1), &values[30 * r], 10, folded[r]));
    }
  }
}

TEST_CASE("logistic_mixture says what does not fit") {
  const Tensor params = random_tensor(Shape{2, 6}, 1);
  check_fails(
      [&] {
        logistic_mixture_nll(random_tensor(Shape{2, 7}, 1), Indices(Shape{2}, {0, 0}));
      },
      "logistic_mixture_nll: params [2,7] do not end in 3K numbers");
  check_fails(
      [&] {
        logistic_mixture_nll(params, Indices(Shape{3}, {0, 0, 0}));
      },
      "bytes [3] do not match params [2,6]");
  check_fails([&] { logistic_mixture_nll(params, Indices(Shape{2}, {0, 256})); }, "256 is not a byte");
  check_fails([&] { logistic_mixture_sample(params, Keys(Shape{3})); }, "3 keys do not match params [2,6]");
  check_fails([&] { logistic_mixture_sample(params, Keys(Shape{2}), 0); }, "temperature 0 is not positive");
  check_fails([&] { logistic_mixture_sample(params, Keys(Shape{2}), 1, Indices(Shape{2})); },
              "position [2] is not one number");
}
