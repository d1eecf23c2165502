// The elementary functions and partial loads that CPU kernels are made of, as the test program's instruction set has
// them.
#include "ops/cpu/loops.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// The largest error in units in the last place of the exact value, for x from `begin` to `end`.
template <class F>
double worst_error(F f, double (*exact)(double), float begin, float end) {
  constexpr int steps = 1000000;
  double worst = 0;
  for (int i = 0; i <= steps; i += static_cast<int>(lanes)) {
    Lanes x;
    for (int64_t j = 0; j < lanes; ++j) x[j] = begin + (end - begin) / steps * static_cast<float>(i + j);
    const Lanes y = f(x);
    for (int64_t j = 0; j < lanes; ++j) {
      const double value = exact(static_cast<double>(x[j]));
      const double unit = std::ldexp(1.0, std::ilogb(value) - 23);
      worst = std::max(worst, std::abs(static_cast<double>(y[j]) - value) / unit);
    }
  }
  return worst;
}

float first(Lanes x) { return x[0]; }

}  // namespace

TEST_CASE("vectors: exp is within 1.2 units in the last place everywhere, and right at the ends") {
  const auto f = [](Lanes x) { return runnel::exp(x); };
  CHECK_LE(worst_error(f, std::exp, -87.3f, 88.7f), 1.2);
  const auto of = [](float x) { return first(runnel::exp(splat(x))); };
  CHECK(of(0) == 1);
  CHECK(of(-0.0f) == 1);
  CHECK(of(1e-30f) == 1);
  CHECK(of(-infinity) == 0);
  CHECK(of(-1e30f) == 0);
  CHECK(of(-87.4f) == 0);
  CHECK(of(-87.33f) >= std::numeric_limits<float>::min());
  CHECK(of(88.72f) < infinity);
  CHECK(of(88.73f) == infinity);
  CHECK(of(infinity) == infinity);
  for (uint32_t bits = 0x7f800001; bits < 0x80000000; bits += 0x1357)  // NaN, whatever its payload and sign
    for (uint32_t sign : {0u, 0x80000000u}) CHECK(std::isnan(of(std::bit_cast<float>(bits | sign))));
}

TEST_CASE("vectors: expm1, log and log1p are within 2 units in the last place, and right at the ends") {
  const auto expm1_of = [](Lanes x) { return runnel::expm1(x); };
  CHECK_LE(worst_error(expm1_of, std::expm1, -20, 80), 2);
  CHECK_LE(worst_error(expm1_of, std::expm1, 1e-6f, 1), 2);
  CHECK_LE(worst_error(expm1_of, std::expm1, -1, -1e-6f), 2);
  const auto log_of = [](Lanes x) { return runnel::log(x); };
  CHECK_LE(worst_error(log_of, std::log, 1e-3f, 0.999f), 2);
  CHECK_LE(worst_error(log_of, std::log, 1.001f, 100), 2);
  CHECK_LE(worst_error(log_of, std::log, 1e-37f, 1e-30f), 2);
  CHECK_LE(worst_error(log_of, std::log, 1e30f, 3e38f), 2);
  CHECK(first(runnel::log(splat(1))) == 0);
  CHECK(first(runnel::log(splat(0))) == -infinity);
  CHECK(first(runnel::log(splat(infinity))) == infinity);
  CHECK(std::isnan(first(runnel::log(splat(-1)))));
  CHECK(std::isnan(first(runnel::log(splat(not_a_number)))));
  const auto log1p_of = [](Lanes x) { return runnel::log1p(x); };
  CHECK_LE(worst_error(log1p_of, std::log1p, 1e-9f, 1e-3f), 2);
  CHECK_LE(worst_error(log1p_of, std::log1p, 1e-3f, 1), 2);
  CHECK(first(runnel::log1p(Lanes{})) == 0);
}

TEST_CASE("vectors: the normal distribution function is within 1e-6 relative, far into its tail, too") {
  for (float x = -12; x < 8; x += 1.37e-3f) {
    const double wanted = 0.5 * std::erfc(-static_cast<double>(x) * std::sqrt(0.5));
    const double bound = x > -4 ? 1e-6 : 1e-5;  // the rounding of x^2 / 2 counts there
    CHECK_LE(std::abs(static_cast<double>(first(normal_cdf(splat(x)))) - wanted), bound * wanted);
  }
  CHECK(first(normal_cdf(splat(-infinity))) == 0);
  CHECK(first(normal_cdf(splat(infinity))) == 1);
  CHECK(std::isnan(first(normal_cdf(splat(not_a_number)))));
}

TEST_CASE("vectors: partial loads and stores, and sums and maxima of every length") {
  for (int64_t n = 1; n <= 5 * lanes; ++n) {
    std::vector<float> x(static_cast<size_t>(n)), y(static_cast<size_t>(n) + 1, 7);
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += x[static_cast<size_t>(i)] = static_cast<float>(i * i % 17) - 20;
    map(
        y.data(), n, [](Lanes v) { return 2 * v; }, x.data());
    for (int64_t i = 0; i < n; ++i) CHECK(y[static_cast<size_t>(i)] == 2 * x[static_cast<size_t>(i)]);
    CHECK(y.back() == 7);
    CHECK(map_sum(
              n, [](Lanes v) { return v; }, x.data()) == doctest::Approx(total));
    CHECK(map_max(n, x.data()) == *std::max_element(x.begin(), x.end()));
    const Lanes part = load(x.data(), n, splat(5));
    for (int64_t i = 0; i < lanes; ++i) CHECK(part[i] == (i < n ? x[static_cast<size_t>(i)] : 5));
  }
}
