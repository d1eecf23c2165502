// Shared by the op tests: random inputs, comparison with a reference in double, gradients by four-point differences.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "engine/check.h"
#include "engine/device.h"
#include "engine/memory.h"
#include "engine/random.h"
#include "engine/tape.h"
#include "engine/tensor.h"
#include "engine/threads.h"
#include "ops/check_gradients.h"

// doctest's, for structured bindings, too: clang 14 does not let a lambda capture them.
#undef CAPTURE
#define CAPTURE_AS(name, x) \
  const auto name = x;      \
  INFO(#x " := ", name)
#define CAPTURE(x) CAPTURE_AS(DOCTEST_ANONYMOUS(captured_), x)

namespace runnel::test {

// Tolerances are reasons. Each is relative to the largest magnitude in the reference.
constexpr double exact = 0;         // the same float operations in the same order
constexpr double rounding = 1e-6;   // a few float operations per element
constexpr double reduction = 1e-5;  // sums of up to some thousand floats in another order

// That many OpenMP threads while it lives; one under ThreadSanitizer, which does not know OpenMP's barriers.
class OmpThreads {
 public:
  explicit OmpThreads([[maybe_unused]] int count) {
#if RUNNEL_WITH_THREAD_SANITIZER
    count = 1;
#endif
    omp_set_num_threads(count);
  }
  ~OmpThreads() { omp_set_num_threads(before_); }
  OmpThreads(const OmpThreads&) = delete;
  OmpThreads& operator=(const OmpThreads&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

// The CPU and, where there is one, the GPU or its emulator (tests/simt): that alone in another order of its threads,
// which changes nothing on the CPU.
inline std::vector<Device> devices() {
  if (!why_unavailable(Device::cuda).empty()) return {Device::cpu};
  if (std::getenv("SIMT_SEED")) return {Device::cuda};
  return {Device::cpu, Device::cuda};
}

// Uniform in [low, high), the same on every device and in every run.
inline Tensor random_tensor(Shape shape, uint64_t seed, float low = -1, float high = 1, Device device = Device::cpu) {
  std::vector<float> values(static_cast<size_t>(shape.size()));
  const Key key{seed};
  for (size_t i = 0; i < values.size(); ++i) values[i] = low + (high - low) * key.uniform(i);
  return Tensor(shape, values, device);
}

inline Indices random_indices(Shape shape, uint64_t seed, uint32_t below, Device device = Device::cpu) {
  std::vector<int32_t> values(static_cast<size_t>(shape.size()));
  const Key key{seed};
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(key.below(i, below));
  return Indices(shape, values, device);
}

inline std::vector<double> doubles(const Tensor& x) {
  const std::vector<float> values = x.to_vector();
  return {values.begin(), values.end()};
}

// Largest difference, relative to the largest magnitude of the reference (or 1, if that is smaller); NaN if any is.
inline double distance(const std::vector<double>& actual, const std::vector<double>& reference) {
  REQUIRE(actual.size() == reference.size());
  double largest = 1, difference = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) || std::isnan(reference[i])) return NAN;
    largest = std::max(largest, std::abs(reference[i]));
    difference = std::max(difference, std::abs(actual[i] - reference[i]));
  }
  return difference / largest;
}

inline void check_close(const Tensor& actual, const std::vector<double>& reference, double tolerance) {
  CHECK_LE(distance(doubles(actual), reference), tolerance);  // false for NaN
}

// sum_i c_i y_i: a loss whose gradient with respect to y is c, which has as many elements.
Tensor weighted_sum(const Tensor& y, const Tensor& c);

// Pearson's chi-squared test of the drawn values against their probabilities: the statistic's mean is its degrees of
// freedom f, its standard deviation sqrt(2 f). Values expected fewer than 8 times share a bin.
inline void check_frequencies(const std::vector<int32_t>& drawn, const std::vector<double>& probability) {
  std::vector<int> count(probability.size());
  for (const int32_t value : drawn) ++count.at(static_cast<size_t>(value));
  double statistic = 0, rare_expected = 0, rare_count = 0, freedom = -1;
  const auto add_bin = [&](double seen, double expected) {
    statistic += (seen - expected) * (seen - expected) / expected;
    ++freedom;
  };
  for (size_t value = 0; value < probability.size(); ++value) {
    const double expected = static_cast<double>(drawn.size()) * probability[value];
    if (expected >= 8) {
      add_bin(count[value], expected);
    } else {
      rare_expected += expected;
      rare_count += count[value];
    }
  }
  if (rare_expected >= 1) add_bin(rare_count, rare_expected);
  CHECK(freedom > 4);
  CHECK(statistic < freedom + 4 * std::sqrt(2 * freedom));
}

// That `f` throws an Error whose text contains `words`.
inline void check_fails(const std::function<void()>& f, const std::string& words) {
  try {
    f();
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK_MESSAGE(text.find(words) != std::string::npos, "expected \"" << words << "\" in: " << text);
    return;
  }
  FAIL_CHECK("no error; expected one with: " << words);
}

}  // namespace runnel::test
