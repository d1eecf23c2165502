#include "engine/replay.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/numerics.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

constexpr Activation activations[] = {Activation::none, Activation::relu, Activation::gelu};

double activated(double z, Activation activation) {
  return activation == Activation::relu   ? std::max(z, 0.0)
         : activation == Activation::gelu ? z * 0.5 * std::erfc(-z * std::sqrt(0.5))
                                          : z;
}

std::vector<double> reference(const Tensor& x, const Tensor& w, const Tensor& b,
                              Activation activation = Activation::none) {
  const int64_t out = w.shape()[0], in = w.shape()[1], rows = x.size() / in;
  const auto dx = doubles(x), dw = doubles(w), db = doubles(b);
  std::vector<double> y(static_cast<size_t>(rows * out));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < out; ++j) {
      double total = b ? db[static_cast<size_t>(j)] : 0;
      for (int64_t i = 0; i < in; ++i)
        total += dx[static_cast<size_t>(r * in + i)] * dw[static_cast<size_t>(j * in + i)];
      y[static_cast<size_t>(r * out + j)] = activated(total, activation);
    }
  return y;
}

}  // namespace

TEST_CASE("linear equals its definition, from one row to several panels, wide and narrow") {
  for (const Device device : devices())
    for (const int64_t rows : {0, 1, 2, 3, 4, 5, 31, 129, 300})
      for (const auto& [out, in] : {std::array<int64_t, 2>{1, 1}, {33, 65}, {65, 33}, {3, 600}, {16, 16}, {150, 300}})
        for (const Activation activation : activations)
          for (const bool bias : {false, true}) {
            CAPTURE(rows);
            CAPTURE(out);
            CAPTURE(in);
            CAPTURE(static_cast<int>(activation));
            CAPTURE(bias);
            const Tensor x = random_tensor(Shape{rows, in}, 1, -1, 1, device);
            const Tensor w = random_tensor(Shape{out, in}, 2, -1, 1, device);
            const Tensor b = bias ? random_tensor(Shape{out}, 3, -1, 1, device) : Tensor();
            check_close(linear(x, w, b, activation), reference(x, w, b, activation), in > 200 ? reduction : rounding);
          }
}

// dL/dw of y = x w^T for dL/dy = g
Tensor weight_gradient(const Tensor& x, Tensor w, const Tensor& g) {
  w.set_wants_grad();
  Tape tape;
  return tape.backward(sum(linear(x, w, Tensor()) * g)).of(w);
}

// With AMX, float32 products are sums of products in bfloat16 (ops/cpu/tile_matrix.h).
TEST_CASE("linear, in f32: a product of two numbers, and its gradient, are as exact as float32") {  // on the CPU
  constexpr int64_t n = 40;
  constexpr double bound = 0x1p-22;  // a few roundings
  for (const float scale : {1e-20f, 1.0f, 1e15f}) {
    const Tensor x = random_tensor(Shape{n, 1}, 1, 0.1f, 1), w = random_tensor(Shape{n, 1}, 2, -scale, scale);
    const Tensor row = reshape(w, Shape{1, n}), g = reshape(x, Shape{1, n});
    const std::vector<double> dx = doubles(x), dw = doubles(w);
    for (const Tensor& product : {linear(x, w, Tensor()), weight_gradient(row, random_tensor(Shape{n, n}, 3), g)}) {
      const std::vector<double> values = doubles(product);
      for (size_t i = 0; i < values.size(); ++i) {
        const double expected = dx[i / n] * dw[i % n];
        REQUIRE(std::abs(values[i] - expected) <= bound * std::abs(expected));
      }
    }
  }
}

TEST_CASE("linear: results so large that stores are non-temporal are those of each row alone") {
  // Rows of whole vectors, and not; of 2 MiB and more, from where on tiles store non-temporally.
  for (const int64_t out : {144, 130}) {
    CAPTURE(out);
    Tensor x = random_tensor(Shape{4100, 8}, 1, -1, 1), w = random_tensor(Shape{out, 8}, 2, -1, 1);
    const Tensor b = random_tensor(Shape{out}, 3, -1, 1), weight = random_tensor(Shape{x.shape()[0] * out, 1}, 4);
    constexpr int64_t first = 3000, count = 50;
    Tensor some = clone(slice(x, 0, first, count));
    const auto results = [&](Tensor& rows, const Tensor& of_rows, Activation activation) {
      rows.set_wants_grad();
      Tape tape;
      const Tensor y = linear(rows, w, b, activation);
      return std::pair(y, tape.backward(weighted_sum(y, of_rows)).of(rows));
    };
    for (const Activation activation : activations) {  // the gradient of gelu reads the argument that it has kept
      const auto [y, dx] = results(x, weight, activation);
      const auto [y_some, dx_some] = results(some, slice(weight, 0, first * out, count * out), activation);
      check_close(slice(detach(y), 0, first, count), doubles(y_some), rounding);
      check_close(slice(dx, 0, first, count), doubles(dx_some), rounding);
    }
  }
}

TEST_CASE("linear: a number that is infinite, undefined or very large gives what the definition says") {  // on the CPU
  constexpr float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  constexpr float large = 0x1.ffp99f;  // its nearest bfloat16 number is larger: with AMX, its parts differ in sign
  constexpr int64_t n = 40, at = 37 * n + 21;  // with AMX, in the second block of rows, or of columns
  const auto check_same = [](const Tensor& actual, const std::vector<double>& expected) {
    const std::vector<float> values = actual.to_vector();
    for (size_t i = 0; i < values.size(); ++i) {
      CAPTURE(i);
      const float value = static_cast<float>(expected[i]);  // infinite if it is too large
      if (std::isnan(value))
        REQUIRE(std::isnan(values[i]));
      else if (std::isinf(value))
        REQUIRE(values[i] == value);
      else
        REQUIRE(std::abs(values[i] - value) <= 1e-5 * std::abs(value));
    }
  };
  for (const float special : {infinity, -infinity, NAN, largest, -large})
    for (const bool in_x : {false, true}) {
      CAPTURE(special);
      CAPTURE(in_x);
      Tensor x = random_tensor(Shape{n, n}, 1, 0.1f, 0.2f), w = random_tensor(Shape{n, n}, 2, 0.1f, 0.2f);
      Tensor& changed = in_x ? x : w;
      changed.data()[at] = special;
      (in_x ? w : x).data()[5 * n + 21] = std::isinf(special) ? 0 : large;  // which it is multiplied with
      check_same(linear(x, w, Tensor()), reference(x, w, Tensor()));
      const Tensor g = random_tensor(Shape{n, n}, 3, 0.1f, 0.2f);
      check_same(weight_gradient(x, w, g), reference(transpose(g), transpose(x), Tensor()));
    }
}

TEST_CASE("linear: relu leaves NaN as it is, packed or not") {  // on the CPU; cuBLAS decides on CUDA
  const Tensor x(Shape{1, 2}, {NAN, 1}), w = Tensor::full(Shape{3, 2}, 1), b = Tensor::full(Shape{3}, 0);
  const PackedLinear layer(w, b);
  for (const Tensor& y : {linear(x, w, b, Activation::relu), linear(x, layer, Activation::relu)})
    for (const float value : y.to_vector()) CHECK(std::isnan(value));
}

TEST_CASE("linear with dropout is linear, then dropout") {
  for (const Device device : devices())
    for (const Activation activation : activations)
      for (const int64_t out : {7, 256}) {
        const Tensor x = random_tensor(Shape{3, 100, 5}, 1, -1, 1, device);
        const Tensor w = random_tensor(Shape{out, 5}, 2, -1, 1, device),
                     b = random_tensor(Shape{out}, 3, -1, 1, device);
        const Dropout drop{0.3f, Key{5}};
        check_close(linear(x, w, b, activation, drop), doubles(dropout(linear(x, w, b, activation), drop)), exact);
      }
}

TEST_CASE("linear: with no input numbers the output is activation(b), with none and no rows the gradients are zeros") {
  for (const Device device : devices()) {
    Tensor x(Shape{300, 0}, device), w(Shape{5, 0}, device), b = random_tensor(Shape{5}, 3, -1, 1, device);
    for (Tensor* leaf : {&x, &w, &b}) leaf->set_wants_grad();
    Tape tape;
    const Tensor y = linear(x, w, b, Activation::relu);
    CHECK(y.shape() == Shape{300, 5});
    const std::vector<float> bias = b.to_vector(), values = y.to_vector();
    for (size_t i = 0; i < values.size(); ++i) CHECK_EQ(values[i], std::max(bias[i % 5], 0.0f));
    const Gradients g = tape.backward(sum(y));
    for (size_t j = 0; j < 5; ++j) CHECK(g.of(b).to_vector()[j] == (bias[j] > 0 ? 300 : 0));
    Tape recording;  // gelu keeps its argument
    std::vector<double> expected;
    for (size_t i = 0; i < values.size(); ++i) expected.push_back(activated(bias[i % 5], Activation::gelu));
    check_close(linear(x, w, b, Activation::gelu), expected, rounding);
    CHECK(g.of(w).shape() == w.shape());
    const PackedLinear packed(detach(w), detach(b));
    CHECK(linear(detach(x), packed, Activation::relu).to_vector() == values);

    Tensor no_rows(Shape{0, 3}, device), v = random_tensor(Shape{5, 3}, 4, -1, 1, device);
    for (Tensor* leaf : {&no_rows, &v}) leaf->set_wants_grad();
    Tape second;
    const Gradients zeros = second.backward(sum(linear(no_rows, v, b)));
    CHECK(zeros.of(v).to_vector() == std::vector<float>(15, 0));
    CHECK(zeros.of(b).to_vector() == std::vector<float>(5, 0));
    Tensor wide = random_tensor(Shape{4, 3}, 5, -1, 1, device), nothing(Shape{0, 3}, device);
    for (Tensor* leaf : {&wide, &nothing}) leaf->set_wants_grad();
    Tape third;
    CHECK(third.backward(sum(linear(wide, nothing, {}))).of(wide).to_vector() == std::vector<float>(12, 0));
  }
}

// The sizes are this test's own: cuBLAS keeps what it has learnt of a kind of product.
TEST_CASE(
    "linear: where cuBLAS refuses a product with bias or relu, it and its gradients are the same, also in a graph") {
  if (!cuda_is_emulated()) return;
  setenv("SIMT_FAULT", "refused-epilogues", 1);
  const int64_t rows = 37, out = 43, in = 41;
  for (const Activation activation : activations)
    for (const bool bias : {true, false}) {
      CAPTURE(bias);
      std::vector<std::vector<double>> expected;
      for (const Device device : {Device::cpu, Device::cuda}) {
        Tensor x = random_tensor(Shape{rows, in}, 1, -1, 1, device),
               w = random_tensor(Shape{out, in}, 2, -1, 1, device);
        Tensor b = bias ? random_tensor(Shape{out}, 3, -1, 1, device) : Tensor();
        const Tensor dy = random_tensor(Shape{rows * out, 1}, 4, -1, 1, device);
        std::vector<Tensor> copies{Tensor(Shape{rows, out}, device)};
        for (Tensor* leaf : {&x, &w, &b})
          if (*leaf) copies.emplace_back(leaf->set_wants_grad().shape(), device);
        Replay replay(device, [&] {
          Tape tape;
          const Tensor y = linear(x, w, b, activation);
          const Gradients g = tape.backward(weighted_sum(y, dy));
          std::vector<Tensor> made{y, g.of(x), g.of(w)};
          if (b) made.push_back(g.of(b));
          for (size_t i = 0; i < made.size(); ++i)
            copy(copies[i].data(), device, made[i].data(), device, static_cast<size_t>(made[i].size()) * sizeof(float));
        });
        for (int run = 0; run < 3; ++run) {  // the first is not a graph
          replay.run();
          if (expected.empty())
            for (const Tensor& copied : copies) expected.push_back(doubles(copied));
          for (size_t i = 0; i < copies.size(); ++i) check_close(copies[i], expected[i], rounding);
        }
      }
    }
  unsetenv("SIMT_FAULT");
}

TEST_CASE("linear's gradients") {
  for (const Device device : devices())
    for (const auto& [rows, out, in] : {std::array<int64_t, 3>{3, 5, 7}, {3, 7, 5}, {270, 4, 3}, {1, 3, 3}})
      for (const float p : {0.0f, 0.4f}) {
        CAPTURE(rows);
        CAPTURE(out);
        CAPTURE(in);
        CAPTURE(p);
        const Tensor x = random_tensor(Shape{rows, in}, 1, -1, 1, device);
        const Tensor w = random_tensor(Shape{out, in}, 2, -1, 1, device);
        const Tensor b = random_tensor(Shape{out}, 3, -1, 1, device);
        const Dropout drop{p, Key{9}};
        check_gradients([&](const auto& in_) { return linear(in_[0], in_[1], in_[2], Activation::none, drop); },
                        {x, w, b});
        check_gradients([&](const auto& in_) { return linear(in_[0], in_[1], Tensor(), Activation::none, drop); },
                        {x, w});
        check_gradients([&](const auto& in_) { return linear(in_[0], in_[1], in_[2], Activation::gelu, drop); },
                        {x, w, b});
        // A bias of +-4 keeps relu off its kink, on either side of it.
        std::vector<float> far(static_cast<size_t>(out));
        for (size_t j = 0; j < far.size(); ++j) far[j] = j % 2 ? 4.0f : -4.0f;
        check_gradients([&](const auto& in_) { return linear(in_[0], in_[1], in_[2], Activation::relu, drop); },
                        {random_tensor(Shape{rows, in}, 1, -0.5f, 0.5f, device), w, Tensor(Shape{out}, far, device)});
      }
}

TEST_CASE("linear: of several layers with one input, each gradient is its own, and that of the input their sum") {
  for (const Device device : devices()) {
    for (const int64_t out : {3, 4})
      for (const Activation activation : activations) {
        const Tensor x = random_tensor(Shape{5, 7}, 1, -1, 1, device);
        const std::vector<Tensor> in{
            x, random_tensor(Shape{out, 7}, 2, -1, 1, device), random_tensor(Shape{out, 7}, 3, -1, 1, device),
            random_tensor(Shape{out}, 4, -1, 1, device), random_tensor(Shape{out}, 5, -1, 1, device)};
        check_gradients(
            [activation](const auto& each) {
              const Tensor alone = linear(each[0], each[1], each[3]);
              const std::vector<Tensor> y = linear(each[0], {each[1], each[2]}, {each[3], each[4]}, activation);
              return alone + y[0] * y[1] + linear(each[0], each[2], each[4]);
            },
            in);
      }
  }
}

TEST_CASE("linear: gradients of many rows equal their definition, to the same bytes with any number of threads") {
  for (const auto& [rows, out, in] : {std::array<int64_t, 3>{1, 35, 17},
                                      {130, 35, 17},
                                      {301, 35, 17},
                                      {1100, 35, 17},
                                      {301, 300, 150},
                                      {140, 150, 300}}) {
    CAPTURE(rows);
    CAPTURE(out);
    const Tensor x = random_tensor(Shape{rows, in}, 1), w = random_tensor(Shape{out, in}, 2),
                 b = random_tensor(Shape{out}, 3);
    const Tensor weight = random_tensor(Shape{rows * out, 1}, 4);
    const auto gradients = [&](int threads) {
      const OmpThreads some(threads);
      Tensor leaves[] = {clone(x), clone(w), clone(b)};
      for (Tensor& leaf : leaves) leaf.set_wants_grad();
      Tape tape;
      const Tensor y = linear(leaves[0], leaves[1], leaves[2]);
      const Gradients g = tape.backward(weighted_sum(y, weight));
      return std::array{g.of(leaves[0]), g.of(leaves[1]), g.of(leaves[2])};
    };
    const auto [dx, dw, db] = gradients(1);
    const std::vector<double> g = doubles(weight), inputs = doubles(x), weights = doubles(w);
    const size_t m = static_cast<size_t>(out), n = static_cast<size_t>(in);
    std::vector<double> expected_dx(inputs.size()), expected_dw(weights.size()), expected_db(m);
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
      for (size_t j = 0; j < m; ++j) {
        expected_db[j] += g[r * m + j];
        for (size_t i = 0; i < n; ++i) {
          expected_dx[r * n + i] += g[r * m + j] * weights[j * n + i];
          expected_dw[j * n + i] += g[r * m + j] * inputs[r * n + i];
        }
      }
    check_close(dx, expected_dx, reduction);
    check_close(dw, expected_dw, reduction);
    check_close(db, expected_db, reduction);
    for (const int threads : {2, 5}) {
      const auto some = gradients(threads);
      CHECK(some[0].to_vector() == dx.to_vector());
      CHECK(some[1].to_vector() == dw.to_vector());
      CHECK(some[2].to_vector() == db.to_vector());
    }
  }
}

TEST_CASE("packed layers change nothing but the order of sums") {
  for (const Device device : devices())
    for (const int64_t rows : {0, 1, 2, 3, 11, 12, 13, 65})
      for (const auto& [out, in] : {std::array<int64_t, 2>{1, 1}, {33, 65}, {65, 33}, {256, 64}}) {
        CAPTURE(rows);
        CAPTURE(out);
        CAPTURE(in);
        const Tensor x = random_tensor(Shape{rows, in}, 1, -1, 1, device);
        const Tensor w = random_tensor(Shape{out, in}, 2, -1, 1, device);
        const Tensor b = random_tensor(Shape{out}, 3, -1, 1, device);
        const Tensor other = random_tensor(Shape{7, in}, 4, -1, 1, device);
        const std::vector<PackedLinear> layers{{w, b}, {other, Tensor::full(Shape{7}, 0, device)}};
        for (const Activation activation : activations)
          check_close(linear(x, layers[0], activation), reference(x, w, b, activation), rounding);
        const std::vector<Tensor> both = linear(x, layers);
        check_close(both[0], reference(x, w, b), rounding);
        check_close(both[1], reference(x, other, {}), rounding);
      }
  const PackedLinear layer(random_tensor(Shape{4, 5}, 1), random_tensor(Shape{4}, 1));
  check_fails([&] { linear(Tensor(Shape{2, 3}), layer); }, "linear: x [2,3] does not match w [4,5]");
  check_fails([] { PackedLinear(Tensor(Shape{4, 5}), Tensor(Shape{5})); }, "linear: b [5] does not match w [4,5]");
}

// Each row in multiples of its largest magnitude / 127.
Tensor rounded_to_int8(const Tensor& t) {
  constexpr float most = 127;
  std::vector<float> values = t.to_vector();
  const auto n = static_cast<std::ptrdiff_t>(t.shape()[-1]);
  for (auto row = values.begin(); row < values.end(); row += n) {
    float largest = 0;
    for (auto at = row; at < row + n; ++at) largest = std::max(largest, std::abs(*at));
    for (auto at = row; at < row + n; ++at) *at = std::nearbyint(*at * (most / largest)) * (largest / most);
  }
  return Tensor(t.shape(), values);
}

TEST_CASE(
    "linear, packed in int8, is that of weights of 8 bits and inputs of 16, rounded by the largest of their row") {
  for (const int64_t rows : {1, 2, 13, 33})
    for (const auto& [out, in] :
         {std::array<int64_t, 2>{1, 1}, {33, 65}, {65, 33}, {256, 64}, {70, 192}, {5, 600}, {40, 640}}) {
      CAPTURE(rows);
      CAPTURE(out);
      CAPTURE(in);
      const Tensor w = random_tensor(Shape{out, in}, 2), b = random_tensor(Shape{out}, 3),
                   zeros = Tensor::full(Shape{7, in}, 0);
      set_precision(Precision::int8);
      const std::vector<PackedLinear> layers{{w, b}, {zeros, Tensor::full(Shape{7}, 2)}};
      set_precision(Precision::f32);
      // Numbers up to 0.4 steps from multiples of a step: none lies so near the middle that it might go to either.
      const auto most = static_cast<float>(std::min<int64_t>(0x7f7f, INT32_MAX / (127 * in)));  // no sum overflows
      constexpr float step = 0x1p-14f;
      std::vector<float> numbers = random_tensor(Shape{rows, in}, 1, -most, most).to_vector(), multiples = numbers;
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (i % static_cast<size_t>(in) == 0) numbers[i] = most;  // a row's largest number decides its scale
        if (i % static_cast<size_t>(in) == 1) numbers[i] = -most;
        const float nearest = std::nearbyint(numbers[i]);
        multiples[i] = step * nearest;
        numbers[i] = step * std::clamp(nearest + 0.8f * (numbers[i] - nearest), -most, most);
      }
      const Tensor x(Shape{rows, in}, numbers), near_x(Shape{rows, in}, multiples), near_w = rounded_to_int8(w);
      const std::vector<Tensor> y = linear(x, layers);
      check_close(y[0], reference(near_x, near_w, b), rounding);
      CHECK(y[1].to_vector() == std::vector<float>(static_cast<size_t>(7 * rows), 2));
      check_close(linear(x, layers[0], Activation::relu), reference(near_x, near_w, b, Activation::relu), rounding);
    }
}

TEST_CASE("linear, packed in int8: no sum overflows, and a row of x that is not finite has results that are not") {
  const int64_t in = 2000;
  set_precision(Precision::int8);
  const PackedLinear layer(Tensor::full(Shape{3, in}, -2), Tensor::full(Shape{3}, 0));
  set_precision(Precision::f32);
  check_close(linear(Tensor::full(Shape{2, in}, 5), layer), std::vector<double>(6, -10.0 * in), rounding);
  set_precision(
      Precision::int8);  // 16 rows of integers whose lower byte is negative: 256 times the upper ones overflows
  const PackedLinear positive(Tensor::full(Shape{3, 576}, 2), Tensor::full(Shape{3}, 0));
  const PackedLinear nothing(Tensor(Shape{0, 576}), Tensor(Shape{0}));
  set_precision(Precision::f32);
  check_close(linear(Tensor::full(Shape{16, 576}, 5), positive), std::vector<double>(48, 5760), rounding);
  CHECK(linear(Tensor::full(Shape{16, 576}, 5), nothing).shape() == Shape{16, 0});
  for (const float wrong : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x(2 * in, 5);
    x[in + 1234] = wrong;
    const std::vector<float> y = linear(Tensor(Shape{2, in}, x), layer).to_vector();
    for (size_t i = 0; i < y.size(); ++i) CHECK_EQ(std::isfinite(y[i]), i < 3);
  }
  check_fails([] { set_precision(Precision::int8, Device::cuda); }, "int8 are for the CPU");
}

TEST_CASE("in bf16, linear and its gradients are those of operands rounded to bfloat16") {
  try {
    set_precision(Precision::bf16);
  } catch (const Error& no_such_processor) {
    MESSAGE("skipped: 1 test, " << std::string(no_such_processor.what()));
    return;
  }
  const auto rounded = [](const Tensor& t) {
    std::vector<float> values = t.to_vector();
    for (float& value : values) {  // 8 bits of precision: to a multiple of 2^(exponent - 8), ties to even
      int exponent = 0;
      std::frexp(value, &exponent);
      value = std::ldexp(std::nearbyint(std::ldexp(value, 8 - exponent)), exponent - 8);
    }
    return Tensor(t.shape(), values);
  };
  for (const int64_t in : {41, 95, 96}) {
    CAPTURE(in);
    set_precision(Precision::bf16);
    Tensor x = random_tensor(Shape{140, in}, 1), w = random_tensor(Shape{33, in}, 2);
    const Tensor b = random_tensor(Shape{33}, 3), dy = random_tensor(Shape{140, 33}, 4);
    const Tensor packed = linear(x, PackedLinear(w, b));
    x.set_wants_grad(), w.set_wants_grad();
    Tape tape;
    const Tensor y = linear(x, w, b);
    const Gradients g = tape.backward(weighted_sum(y, dy));
    set_precision(Precision::f32);
    check_close(y, reference(rounded(x), rounded(w), b), rounding);
    check_close(packed, reference(rounded(x), rounded(w), b), rounding);
    check_close(g.of(x), doubles(matmul(rounded(dy), rounded(w))), reduction);
    check_close(g.of(w), doubles(matmul(rounded(dy), rounded(x), true)), reduction);
  }
}

TEST_CASE("linear, packed: a row's bytes do not depend on how many rows or threads there are") {
  for (const Precision precision : {Precision::f32, Precision::bf16, Precision::int8})
    for (const int64_t in : {41, 95, 128}) {
      if (precision == Precision::bf16 && !has_bf16()) continue;  // of which the test before says that it is skipped
      CAPTURE(static_cast<int>(precision));
      CAPTURE(in);
      const Tensor x = random_tensor(Shape{40, in}, 1);
      set_precision(precision);
      const PackedLinear layer(random_tensor(Shape{1030, in}, 2), random_tensor(Shape{1030}, 3));
      set_precision(Precision::f32);
      const std::vector<float> all = linear(x, layer).to_vector();
      for (const int threads : {1, 2, 5})
        for (const int64_t rows : {1, 4, 9, 17}) {
          const OmpThreads some_threads(threads);
          const std::vector<float> some = linear(slice(x, 0, 0, rows), layer).to_vector();
          CHECK(some == std::vector<float>(all.begin(), all.begin() + 1030 * rows));
        }
    }
}

TEST_CASE("linear computes only the gradients that are wanted") {
  for (const Device device : devices()) {
    const Tensor x = random_tensor(Shape{3, 5}, 1, -1, 1, device), b = random_tensor(Shape{4}, 3, -1, 1, device);
    Tensor w = random_tensor(Shape{4, 5}, 2, -1, 1, device);
    w.set_wants_grad();
    Tape tape;
    const Gradients gradients = tape.backward(sum(linear(x, w, b)));
    CHECK_EQ(gradients.of(w).shape(), w.shape());
    check_fails([&] { gradients.of(x); }, "does not depend");
    check_fails([&] { gradients.of(b); }, "does not depend");
  }
}

TEST_CASE("linear names the shapes that do not match") {
  const Tensor x = random_tensor(Shape{2, 3}, 1), w = random_tensor(Shape{4, 5}, 2), b = random_tensor(Shape{5}, 3);
  check_fails([&] { linear(x, w, {}); }, "linear: x [2,3] does not match w [4,5]");
  check_fails([&] { linear(random_tensor(Shape{2, 5}, 1), w, b); }, "linear: b [5] does not match w [4,5]");
  check_fails([&] { linear(x, b, {}); }, "linear: w [5] is not a matrix");
  check_fails([&] { linear(random_tensor(Shape{2, 5}, 1), w, {}, Activation::none, {1.5f, {}}); }, "dropout");
}
