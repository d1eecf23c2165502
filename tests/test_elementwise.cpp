#include "tests/check.h"

#include "ops/elementwise.h"
#include "ops/shapes.h"
#include "ops/sums.h"

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

struct Function {
  const char* name;
  Tensor (*op)(const Tensor&);
  double (*reference)(double);
};
const std::vector<Function> functions = {
    {"relu", relu, [](double x) { return std::max(x, 0.0); }},
    {"gelu", gelu, [](double x) { return x * 0.5 * std::erfc(-x * std::sqrt(0.5)); }},
    {"elu_plus_one", elu_plus_one, [](double x) { return x > 0 ? x + 1 : std::exp(x); }},
};

// Random numbers whose distance from 0, where relu and elu have their kinks, is at least 0.1.
Tensor off_zero(Shape shape, uint64_t seed, Device device) {
  std::vector<float> values = random_tensor(shape, seed, -2, 2).to_vector();
  for (float& value : values) value += value < 0 ? -0.1f : 0.1f;
  return Tensor(shape, values, device);
}

}  // namespace

TEST_CASE("relu, gelu, elu_plus_one: values and gradients") {
  for (const Function& f : functions) {
    CAPTURE(f.name);
    for (Device device : devices()) {
      for (const Shape& shape : shapes) {
        const Tensor x = random_tensor(shape, 1, -6, 6, device);
        check_close(f.op(x), mapped(x, f.reference), rounding);
      }
      check_gradients([&](const std::vector<Tensor>& in) { return f.op(in[0]); }, {off_zero(Shape{7, 33}, 2, device)});
    }
  }
}

TEST_CASE("relu, gelu, elu_plus_one: far from zero, and NaN") {
  for (Device device : devices()) {
    const Tensor x(Shape{4}, {-100, -50, 50, 1e30f}, device);
    CHECK(relu(x).to_vector() == std::vector<float>{0, 0, 50, 1e30f});
    CHECK(gelu(x).to_vector() == std::vector<float>{0, 0, 50, 1e30f});
    CHECK(elu_plus_one(x).to_vector()[0] < 1e-43);
    CHECK(elu_plus_one(x).to_vector()[1] > 0);
    CHECK(elu_plus_one(x).to_vector()[3] == 1e30f);
    for (const Function& f : functions) {
      CAPTURE(f.name);
      CHECK(std::isnan(f.op(Tensor(Shape{1}, {NAN}, device)).item()));
    }
  }
}

TEST_CASE("add, scale, reshape: values and gradients") {
  for (Device device : devices()) {
    for (const Shape& shape : shapes) {
      const Tensor a = random_tensor(shape, 3, -1, 1, device), b = random_tensor(shape, 4, -1, 1, device);
      std::vector<double> total = doubles(a);
      const std::vector<double> added = doubles(b);
      for (size_t i = 0; i < total.size(); ++i) total[i] += added[i];
      check_close(add(a, b), total, rounding);
      check_close(scale(a, -0.3f), mapped(a, [](double x) { return -0.3 * x; }), rounding);
      std::vector<double> product = doubles(a);
      for (size_t i = 0; i < product.size(); ++i) product[i] *= added[i];
      check_close(scale(a, b), product, rounding);
      check_close(reshape(a, Shape{shape.size()}), doubles(a), exact);
    }
    const Tensor a = random_tensor(Shape{5, 7}, 5, -1, 1, device), b = random_tensor(Shape{5, 7}, 6, -1, 1, device);
    check_gradients([](const std::vector<Tensor>& in) { return add(in[0], in[1]); }, {a, b});
    check_gradients([](const std::vector<Tensor>& in) { return scale(in[0], 1.7f); }, {a});
    check_gradients([b](const std::vector<Tensor>& in) { return scale(in[0], b); }, {a});
    check_gradients(
        [](const std::vector<Tensor>& in) {
          return relu(reshape(in[0], Shape{7, 5}));
        },
        {off_zero(Shape{5, 7}, 7, device)});
    CHECK(reshape(a, Shape{7, 5}).data() == a.data());
  }
}

TEST_CASE("add_bias: values and gradients") {
  for (Device device : devices()) {
    for (int64_t rows : {0, 1, 3, 65, 701})
      for (int64_t n : {1, 31, 64, 65, 130}) {
        CAPTURE(rows);
        CAPTURE(n);
        const Tensor x = random_tensor(Shape{rows, n}, 8, -1, 1, device);
        Tensor b = random_tensor(Shape{n}, 9, -1, 1, device);
        b.set_wants_grad();
        const Tensor dy = random_tensor(Shape{rows, n}, 10, -1, 1, device);
        std::vector<double> y = doubles(x), db(static_cast<size_t>(n));
        const std::vector<double> bias = doubles(b), cotangent = doubles(dy);
        for (size_t i = 0; i < y.size(); ++i) {
          y[i] += bias[i % bias.size()];
          db[i % bias.size()] += cotangent[i];
        }
        check_close(add_bias(x, b), y, rounding);
        if (rows == 0) continue;
        Tape tape;
        const Tensor loss = weighted_sum(add_bias(x, b), dy);
        check_close(tape.backward(loss).of(b), db, reduction);
      }
    check_gradients([](const std::vector<Tensor>& in) { return add_bias(in[0], in[1]); },
                    {random_tensor(Shape{2, 3, 5}, 11, -1, 1, device), random_tensor(Shape{5}, 12, -1, 1, device)});
  }
}

TEST_CASE("sum: value and gradient") {
  for (Device device : devices()) {
    for (const Shape& shape : shapes) {
      double total = 0;
      const Tensor x = random_tensor(shape, 13, -1, 1, device);
      for (double value : doubles(x)) total += value;
      check_close(sum(x), {total}, rounding);
    }
    Tensor x = random_tensor(Shape{3, 5}, 14, -1, 1, device);
    x.set_wants_grad();
    Tape tape;
    check_close(tape.backward(scale(sum(x), 2.5f)).of(x), std::vector<double>(15, 2.5), exact);
  }
}

TEST_CASE("elementwise ops: what they refuse") {
  const Tensor x(Shape{2, 3});
  check_fails([&] { add(x, Tensor(Shape{3, 2})); }, "add: b [3,2] does not match a [2,3]");
  check_fails([&] { add_bias(x, Tensor(Shape{2})); }, "add_bias: b [2] does not match the last axis of x [2,3]");
  check_fails([&] { add_bias(Tensor(Shape{}), Tensor(Shape{1})); }, "add_bias: b [1]");
  check_fails([&] { reshape(x, Shape{4}); }, "reshape: x [2,3] does not have as many elements as [4]");
}
