#include "ops/elementwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

const std::vector<Shape> shapes = {Shape{}, Shape{1}, Shape{3}, Shape{31, 33}, Shape{2, 0}, Shape{5, 65, 129}};

// f applied to every element, in double.
std::vector<double> mapped(const Tensor& x, const std::function<double(double)>& f) {
  std::vector<double> y = doubles(x);
  for (double& value : y) value = f(value);
  return y;
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

struct Case {
  const char* name;
  Tensor (*op)(const Tensor&);
  double (*reference)(double);
  float low = -6;  // of its arguments
};
const std::vector<Case> functions = {
    {"exp", exp, std::exp},
    {"log", log, std::log, 0.1f},
    {"sqrt", sqrt, std::sqrt, 0.1f},
    {"square", square, [](double x) { return x * x; }},
    {"abs", abs, [](double x) { return std::abs(x); }},
    {"tanh", tanh, std::tanh},
    {"sigmoid", sigmoid, logistic},
    {"silu", silu, [](double x) { return x * logistic(x); }},
    {"softplus", softplus, [](double x) { return std::log1p(std::exp(x)); }},
    {"relu", relu, [](double x) { return std::max(x, 0.0); }},
    {"gelu", gelu, [](double x) { return x * 0.5 * std::erfc(-x * std::sqrt(0.5)); }},
    {"elu_plus_one", elu_plus_one, [](double x) { return x > 0 ? x + 1 : std::exp(x); }},
};

// Random numbers in [low, 2) whose distance from 0, where some functions have kinks, is at least 0.1.
Tensor off_zero(Shape shape, uint64_t seed, float low, Device device) {
  std::vector<float> values = random_tensor(shape, seed, low, 2).to_vector();
  for (float& value : values) value += value < 0 ? -0.1f : 0.1f;
  return Tensor(shape, values, device);
}

struct BinaryCase {
  const char* name;
  Tensor (*op)(const Tensor&, const Tensor&);
  double (*reference)(double, double);
};
const std::vector<BinaryCase> binaries = {
    {"add", add, [](double a, double b) { return a + b; }},
    {"subtract", subtract, [](double a, double b) { return a - b; }},
    {"multiply", multiply, [](double a, double b) { return a * b; }},
    {"divide", divide, [](double a, double b) { return a / b; }},
    {"maximum", maximum, [](double a, double b) { return std::max(a, b); }},
};

// The element of x that is repeated at `index` of a larger shape.
double repeated(const Tensor& x, const std::vector<double>& values, const Shape& shape, int64_t index) {
  int64_t at = 0, step = 1;
  for (int i = 1; i <= shape.rank(); ++i) {
    const int64_t size = i <= x.shape().rank() ? x.shape()[-i] : 1;
    at += size == 1 ? 0 : index % shape[-i] * step;
    step *= size;
    index /= shape[-i];
  }
  return values[static_cast<size_t>(at)];
}

struct Broadcast {
  Shape a, b, y;
};
const std::vector<Broadcast> broadcasts = {
    {{5, 65, 129}, {5, 65, 129}, {5, 65, 129}},
    {{}, {}, {}},
    {{2, 0}, {1, 1}, {2, 0}},
    {{3, 4, 5}, {5}, {3, 4, 5}},
    {{3, 1, 5}, {4, 1}, {3, 4, 5}},
    {{1}, {3, 4, 5}, {3, 4, 5}},
    {{}, {33}, {33}},
    {{3, 4, 5}, {3, 1, 1}, {3, 4, 5}},
    {{2, 1, 3, 1, 2, 1}, {1, 3, 1, 2, 1, 3}, {2, 3, 3, 2, 2, 3}},
    {{4, 5000}, {4, 1}, {4, 5000}},
};

}  // namespace

TEST_CASE("elementwise functions: values and gradients") {
  for (const Case& f : functions) {
    CAPTURE(f.name);
    for (Device device : devices()) {
      for (const Shape& shape : shapes) {
        const Tensor x = random_tensor(shape, 1, f.low, 6, device);
        check_close(f.op(x), mapped(x, f.reference), rounding);
      }
      check_gradients([&](const std::vector<Tensor>& in) { return f.op(in[0]); },
                      {off_zero(Shape{7, 33}, 2, f.low < 0 ? -2 : 0.2f, device)});
    }
  }
}

TEST_CASE("elementwise functions: far from zero, and NaN") {
  for (Device device : devices()) {
    const Tensor x(Shape{4}, {-100, -50, 50, 1e30f}, device);
    CHECK(relu(x).to_vector() == std::vector<float>{0, 0, 50, 1e30f});
    CHECK(gelu(x).to_vector() == std::vector<float>{0, 0, 50, 1e30f});
    CHECK(elu_plus_one(x).to_vector()[0] < 1e-43);
    CHECK(elu_plus_one(x).to_vector()[1] > 0);
    CHECK(elu_plus_one(x).to_vector()[3] == 1e30f);
    CHECK(tanh(x).to_vector() == std::vector<float>{-1, -1, 1, 1});
    CHECK(sigmoid(x).to_vector()[3] == 1);
    CHECK(softplus(x).to_vector()[0] < 1e-43);
    CHECK(softplus(x).to_vector()[3] == 1e30f);
    CHECK(silu(x).to_vector()[3] == 1e30f);
    for (const Case& f : functions) {
      CAPTURE(f.name);
      CHECK(std::isnan(f.op(Tensor(Shape{1}, {NAN}, device)).item()));
    }
  }
}

TEST_CASE("elementwise functions: two numbers, with broadcasting: values and gradients") {
  for (const BinaryCase& f : binaries) {
    CAPTURE(f.name);
    for (Device device : devices()) {
      for (const Broadcast& s : broadcasts) {
        CAPTURE(s.a);
        CAPTURE(s.b);
        // Differences of at least 0.5, where the largest of two has a kink.
        const Tensor a = random_tensor(s.a, 3, 1, 2, device), b = random_tensor(s.b, 4, 2.5, 3.5, device);
        const Tensor y = f.op(a, b);
        REQUIRE(y.shape() == s.y);
        const std::vector<double> of_a = doubles(a), of_b = doubles(b);
        std::vector<double> expected;
        for (int64_t i = 0; i < s.y.size(); ++i)
          expected.push_back(f.reference(repeated(a, of_a, s.y, i), repeated(b, of_b, s.y, i)));
        check_close(y, expected, rounding);
        if (s.y.size() > 0 && s.y.size() < 300)
          check_gradients([&](const std::vector<Tensor>& in) { return f.op(in[0], in[1]); }, {a, b});
      }
    }
  }
}

TEST_CASE("maximum: of equal numbers the first has the gradient; NaN stays NaN") {
  for (Device device : devices()) {
    Tensor a(Shape{2}, {1, 2}, device), b(Shape{2}, {1, 1}, device);
    a.set_wants_grad();
    b.set_wants_grad();
    Tape tape;
    const Gradients gradients = tape.backward(sum(maximum(a, b)));
    CHECK(gradients.of(a).to_vector() == std::vector<float>{1, 1});
    CHECK(gradients.of(b).to_vector() == std::vector<float>{0, 0});
    const Tensor nan(Shape{}, {NAN}, device);
    CHECK(std::isnan(maximum(nan, a).to_vector()[0]));
    CHECK(std::isnan(maximum(a, nan).to_vector()[0]));
  }
}

TEST_CASE(
    "where: takes the chosen numbers and their gradients, whatever the others are; refuses a mask that wants one") {
  for (Device device : devices()) {
    const Tensor mask(Shape{2, 3}, {1, 0, -2, 0, 0, 1}, device);
    const Tensor inf = Tensor::full({}, INFINITY, device);
    CHECK(where(mask, Tensor::full({3}, 2, device), inf).to_vector() ==
          std::vector<float>{2, INFINITY, 2, INFINITY, INFINITY, 2});
    check_gradients([&](const std::vector<Tensor>& in) { return where(mask, in[0], in[1]); },
                    {random_tensor(Shape{3}, 1, -1, 1, device), random_tensor(Shape{2, 1}, 2, -1, 1, device)});
    Tensor wanting(Shape{2, 3}, device);
    wanting.set_wants_grad();
    Tape tape;
    check_fails([&] { where(wanting, mask, mask); }, "where has no gradient for mask [2,3]");
  }
}

TEST_CASE("operators: numbers and tensors") {
  for (Device device : devices()) {
    const Tensor x(Shape{2}, {1, -2}, device), y(Shape{2}, {4, 5}, device);
    CHECK((x + y).to_vector() == std::vector<float>{5, 3});
    CHECK((x - y).to_vector() == std::vector<float>{-3, -7});
    CHECK((x * y).to_vector() == std::vector<float>{4, -10});
    CHECK((y / x).to_vector() == std::vector<float>{4, -2.5f});
    CHECK((-x).to_vector() == std::vector<float>{-1, 2});
    CHECK((x + 2).to_vector() == std::vector<float>{3, 0});
    CHECK((2 + x).to_vector() == std::vector<float>{3, 0});
    CHECK((x - 2).to_vector() == std::vector<float>{-1, -4});
    CHECK((2 - x).to_vector() == std::vector<float>{1, 4});
    CHECK((x * 2).to_vector() == std::vector<float>{2, -4});
    CHECK((2 * x).to_vector() == std::vector<float>{2, -4});
    CHECK((x / 2).to_vector() == std::vector<float>{0.5f, -1});
    CHECK((2 / x).to_vector() == std::vector<float>{2, -1});
    check_gradients(
        [](const std::vector<Tensor>& in) {
          const Tensor &a = in[0], &b = in[1];
          return (2 - a) * (a + 1) / (b - 0.5f) + 3 / b - (1 + a) * 2 - (-a) * (a * b) / 2;
        },
        {random_tensor(Shape{3}, 1, -1, 1, device), random_tensor(Shape{3}, 2, 1, 2, device)});
  }
}

TEST_CASE("one tensor as both operands has the whole gradient") {
  for (Device device : devices()) {
    Tensor a(Shape{2}, {3, -1}, device);
    a.set_wants_grad();
    Tape tape;
    CHECK(tape.backward(sum(multiply(a, a))).of(a).to_vector() == std::vector<float>{6, -2});
  }
}

TEST_CASE("scale, reshape: values and gradients") {
  for (Device device : devices()) {
    for (const Shape& shape : shapes) {
      const Tensor a = random_tensor(shape, 3, -1, 1, device);
      check_close(scale(a, -0.3f), mapped(a, [](double x) { return -0.3 * x; }), rounding);
      check_close(reshape(a, Shape{shape.size()}), doubles(a), exact);
    }
    check_gradients(
        [](const std::vector<Tensor>& in) {
          return scale(reshape(in[0], Shape{7, 5}), 0.5f);
        },
        {random_tensor(Shape{5, 7}, 5, -1, 1, device)});
  }
}

TEST_CASE("elementwise functions: shapes that do not match are refused") {
  const Tensor a(Shape{2, 3}), b(Shape{3, 2});
  check_fails([&] { add(a, b); },
              "add: b [3,2] does not match a [2,3]: aligned at the last axis, sizes must be equal or 1");
  check_fails([&] { a* Tensor(Shape{4, 2, 2}); }, "multiply: b [4,2,2] does not match a [2,3]");
  check_fails([&] { where(a, a, b); }, "where: b [3,2] does not match a [2,3]");
  check_fails([&] { reshape(a, Shape{5}); }, "reshape: x [2,3] does not have as many elements as [5]");
}
