#include "ops/elementwise.h"
#include "ops/reductions.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Axis {  // x as [outer,n,inner]
  size_t outer = 1, n = 1, inner = 1;
  Axis(const Shape& shape, int axis) {
    axis = (axis + shape.rank()) % shape.rank();
    for (int i = 0; i < shape.rank(); ++i) (i < axis ? outer : i == axis ? n : inner) *= static_cast<size_t>(shape[i]);
  }
};

// The numbers along the axis, for each place besides.
std::vector<std::vector<double>> lines(const Tensor& x, int axis) {
  const Axis a(x.shape(), axis);
  const std::vector<double> values = doubles(x);
  std::vector<std::vector<double>> lines;
  for (size_t o = 0; o < a.outer; ++o)
    for (size_t i = 0; i < a.inner; ++i) {
      lines.emplace_back();
      for (size_t j = 0; j < a.n; ++j) lines.back().push_back(values[(o * a.n + j) * a.inner + i]);
    }
  return lines;
}

// A number for each line.
std::vector<double> reduced(const Tensor& x, int axis, const std::function<double(const std::vector<double>&)>& f) {
  std::vector<double> y;
  for (const std::vector<double>& line : lines(x, axis)) y.push_back(f(line));
  return y;
}

// A line for each line.
std::vector<double> replaced(const Tensor& x, int axis,
                             const std::function<std::vector<double>(const std::vector<double>&)>& f) {
  const Axis a(x.shape(), axis);
  std::vector<double> y(static_cast<size_t>(x.size()));
  size_t line = 0;
  for (const std::vector<double>& before : lines(x, axis)) {
    const std::vector<double> after = f(before);
    for (size_t j = 0; j < a.n; ++j) y[(line / a.inner * a.n + j) * a.inner + line % a.inner] = after[j];
    ++line;
  }
  return y;
}

double total(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum;
}

std::vector<double> softmax_of(std::vector<double> x) {
  const double largest = *std::max_element(x.begin(), x.end());
  for (double& value : x) value = std::exp(value - largest);
  const double sum = total(x);
  for (double& value : x) value /= sum;
  return x;
}

struct Case {
  Shape shape;
  int axis;
};
const std::vector<Case> cases = {{{3, 4, 5}, 0}, {{3, 4, 5}, 1},     {{3, 4, 5}, 2},    {{3, 4, 5}, -1},
                                 {{7}, 0},       {{5, 130, 129}, 1}, {{2000, 33}, 0},   {{33, 2000}, -1},
                                 {{1, 1}, 0},    {{20000}, 0},       {{70000, 2, 2}, 1}};

bool is_large(const Shape& shape) { return shape.size() > 1000; }

}  // namespace

TEST_CASE("sum, mean, max: over an axis: values and gradients") {
  for (const Case& c : cases) {
    CAPTURE(c.shape);
    CAPTURE(c.axis);
    for (Device device : devices()) {
      if (device == Device::cuda && cuda_is_emulated() && c.shape.size() > 200000) continue;
      const Tensor x = random_tensor(c.shape, 1, -1, 1, device);
      const double n = static_cast<double>(c.shape[c.axis]);
      check_close(sum(x, c.axis), reduced(x, c.axis, total), reduction);
      check_close(mean(x, c.axis), reduced(x, c.axis, [&](const auto& line) { return total(line) / n; }), reduction);
      check_close(max(x, c.axis),
                  reduced(x, c.axis, [](const auto& line) { return *std::max_element(line.begin(), line.end()); }),
                  exact);
      CHECK(sum(x, c.axis, true).shape().rank() == c.shape.rank());
      CHECK(sum(x, c.axis, true).shape()[c.axis] == 1);
      CHECK(sum(x, c.axis).shape().rank() == c.shape.rank() - 1);
      if (is_large(c.shape)) continue;
      check_gradients([&](const std::vector<Tensor>& in) { return sum(in[0], c.axis); }, {x});
      check_gradients([&](const std::vector<Tensor>& in) { return mean(in[0], c.axis, true); }, {x});
      // Numbers that are 0.1 apart, in a random order: where two are equal, the largest has a kink.
      std::vector<float> apart(static_cast<size_t>(x.size()));
      for (size_t i = 0; i < apart.size(); ++i) apart[i] = 0.1f * static_cast<float>(i * 7919 % 6007 % 997);
      check_gradients([&](const std::vector<Tensor>& in) { return max(in[0], c.axis); },
                      {Tensor(c.shape, apart, device)});
    }
  }
}

TEST_CASE("sum, mean, max: of all numbers, of none, and of equal ones") {
  for (Device device : devices()) {
    const Tensor x(Shape{2, 2}, {1, 7, 7, -2}, device);
    CHECK(sum(x).item() == 13);
    CHECK(sum(x).shape() == Shape{});
    CHECK(mean(x).item() == 3.25f);
    CHECK(max(x).item() == 7);
    CHECK(sum(Tensor(Shape{0, 3}, device)).item() == 0);
    CHECK(sum(Tensor(Shape{0, 3}, device), 0).to_vector() == std::vector<float>{0, 0, 0});
    CHECK(sum(Tensor(Shape{3, 0}, device), 0).size() == 0);
    Tensor equal(Shape{4}, {1, 7, 7, -2}, device);
    equal.set_wants_grad();
    Tape tape;
    CHECK(tape.backward(max(equal)).of(equal).to_vector() == std::vector<float>{0, 1, 0, 0});
    std::vector<float> with_nan(100, 1);
    with_nan[40] = NAN;
    CHECK(std::isnan(max(Tensor(Shape{100}, with_nan, device)).item()));
    CHECK(std::isnan(max(Tensor(Shape{2}, {NAN, 1}, device)).item()));
  }
  check_fails([] { sum(Tensor(Shape{2, 3}), 2); }, "sum: x [2,3] has no axis 2");
  check_fails([] { max(Tensor(Shape{2, 0}), 1); }, "max: axis 1 of x [2,0] has no numbers");
}

TEST_CASE("cumulative_sum: values and gradients") {
  for (const Case& c : cases)
    for (Device device : devices()) {
      CAPTURE(c.shape);
      CAPTURE(c.axis);
      const Tensor x = random_tensor(c.shape, 1, -1, 1, device);
      if (device == Device::cuda && cuda_is_emulated() && c.shape.size() > 200000) continue;
      check_close(cumulative_sum(x, c.axis),
                  replaced(x, c.axis,
                           [](std::vector<double> line) {
                             for (size_t j = 1; j < line.size(); ++j) line[j] += line[j - 1];
                             return line;
                           }),
                  reduction);
      if (!is_large(c.shape))
        check_gradients([&](const std::vector<Tensor>& in) { return cumulative_sum(in[0], c.axis); }, {x});
    }
}

TEST_CASE("argmax: the place of the first largest number of each row") {
  for (const Device device : devices()) {
    CHECK(argmax(Tensor(Shape{2, 3}, {1, 5, 5, -1, -2, -3}, device)).to_vector() == std::vector<int32_t>{1, 0});
    const Tensor x = random_tensor(Shape{2, 5, 67}, 1, -1, 1, device);
    const Indices y = argmax(x);
    CHECK(y.shape() == Shape{2, 5});
    const std::vector<float> values = x.to_vector();
    for (int64_t row = 0; row < 10; ++row) {
      const auto begin = values.begin() + row * 67;
      CHECK(y.to_vector()[static_cast<size_t>(row)] == std::max_element(begin, begin + 67) - begin);
    }
  }
  check_fails([] { argmax(Tensor(Shape{2, 0})); }, "argmax: axis -1 of x [2,0] has no numbers");
}

TEST_CASE("softmax, log_softmax: values and gradients, also of large numbers") {
  const auto logs = [](std::vector<double> line) {
    line = softmax_of(line);
    for (double& value : line) value = std::log(value);
    return line;
  };
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 3, 33}, Shape{1}, Shape{4, 1000}})
    for (Device device : devices()) {
      CAPTURE(shape);
      for (const float scale : {1.0f, 100.0f}) {
        const Tensor x = random_tensor(shape, 1, -scale, scale, device);
        check_close(softmax(x), replaced(x, -1, softmax_of), reduction);
        if (scale == 1) check_close(log_softmax(x), replaced(x, -1, logs), reduction);
      }
      const Tensor far(Shape{2}, {0, -1000}, device);
      CHECK(log_softmax(far).to_vector() == std::vector<float>{0, -1000});
      if (is_large(shape)) continue;
      const Tensor x = random_tensor(shape, 2, -1, 1, device);
      check_gradients([](const std::vector<Tensor>& in) { return softmax(in[0]); }, {x});
      check_gradients([](const std::vector<Tensor>& in) { return log_softmax(in[0]); }, {x});
    }
  check_fails([] { softmax(Tensor(Shape{})); }, "softmax: x [] has no axis");
}

TEST_CASE("rms_norm, l2_normalize: values and gradients") {
  for (Device device : devices()) {
    const Tensor x = random_tensor(Shape{3, 5}, 1, -1, 1, device), gamma = random_tensor(Shape{5}, 2, 0.5, 1.5, device);
    const auto squares = [](const std::vector<double>& line) {
      double sum = 0;
      for (const double value : line) sum += value * value;
      return sum;
    };
    const std::vector<double> factors = doubles(gamma);
    check_close(rms_norm(x, gamma),
                replaced(x, -1,
                         [&](std::vector<double> line) {
                           const double norm = std::sqrt(squares(line) / 5 + 1e-6);
                           for (size_t j = 0; j < 5; ++j) line[j] *= factors[j] / norm;
                           return line;
                         }),
                reduction);
    check_close(l2_normalize(x),
                replaced(x, -1,
                         [&](std::vector<double> line) {
                           const double norm = std::sqrt(squares(line) + 1e-6);
                           for (double& value : line) value /= norm;
                           return line;
                         }),
                reduction);
    check_gradients([](const std::vector<Tensor>& in) { return rms_norm(in[0], in[1]); }, {x, gamma});
    check_gradients([](const std::vector<Tensor>& in) { return l2_normalize(in[0]); }, {x});
    CHECK(l2_normalize(Tensor::full(Shape{2}, 0, device)).to_vector() == std::vector<float>{0, 0});
  }
}

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
