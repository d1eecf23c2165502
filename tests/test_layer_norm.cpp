#include "tests/check.h"

#include "ops/elementwise.h"
#include "ops/layers.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<double> reference(const std::vector<double>& s, const Tensor& gamma, const Tensor& beta) {
  const std::vector<double> g = doubles(gamma), b = doubles(beta);
  const size_t d = g.size();
  std::vector<double> y(s.size());
  for (size_t r = 0; r < s.size(); r += d) {
    double mean = 0, variance = 0;
    for (size_t j = 0; j < d; ++j) mean += s[r + j] / static_cast<double>(d);
    for (size_t j = 0; j < d; ++j) variance += (s[r + j] - mean) * (s[r + j] - mean) / static_cast<double>(d);
    for (size_t j = 0; j < d; ++j) y[r + j] = (s[r + j] - mean) / std::sqrt(variance + 1e-5) * g[j] + b[j];
  }
  return y;
}

// The gradients of x, gamma and beta for the cotangent dy.
std::vector<std::vector<double>> reference_gradients(const std::vector<double>& x, const Tensor& gamma,
                                                     const std::vector<double>& dy) {
  const std::vector<double> g = doubles(gamma);
  const size_t d = g.size();
  const auto width = static_cast<double>(d);
  std::vector<double> dx(x.size()), dgamma(d), dbeta(d), z(d);
  for (size_t r = 0; r < x.size(); r += d) {
    double mean = 0, variance = 0, mean_g = 0, mean_gz = 0;
    for (size_t j = 0; j < d; ++j) mean += x[r + j] / width;
    for (size_t j = 0; j < d; ++j) variance += (x[r + j] - mean) * (x[r + j] - mean) / width;
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    for (size_t j = 0; j < d; ++j) {
      z[j] = (x[r + j] - mean) * rstd;
      mean_g += dy[r + j] * g[j] / width;
      mean_gz += dy[r + j] * g[j] * z[j] / width;
      dgamma[j] += dy[r + j] * z[j];
      dbeta[j] += dy[r + j];
    }
    for (size_t j = 0; j < d; ++j) dx[r + j] = rstd * (dy[r + j] * g[j] - mean_g - z[j] * mean_gz);
  }
  return {dx, dgamma, dbeta};
}

Tensor layer_norm_of(const std::vector<Tensor>& in) { return layer_norm(in[0], in[1], in[2]); }

}  // namespace

TEST_CASE("layer_norm: values") {
  for (Device device : devices())
    for (int64_t rows : {0, 1, 3, 257})
      for (int64_t d : {1, 3, 31, 33, 256}) {
        CAPTURE(rows);
        CAPTURE(d);
        const Tensor x = random_tensor(Shape{rows, d}, 1, -2, 5, device);
        const Tensor gamma = random_tensor(Shape{d}, 2, 0.5, 1.5, device),
                     beta = random_tensor(Shape{d}, 3, -1, 1, device);
        check_close(layer_norm(x, gamma, beta), reference(doubles(x), gamma, beta), reduction);
      }
}

// On CUDA, rows of up to 512 numbers belong to a warp, longer ones to a block, and the sums over rows of the longest do
// not fit in shared memory. On the CPU, at most 32 parts of the rows are summed up by themselves.
TEST_CASE("layer_norm: many rows and long rows equal the definition, forward and backward") {
  for (Device device : devices())
    for (const Shape& shape : {Shape{299, 129}, Shape{20, 600}, Shape{20, 30000}}) {
      CAPTURE(shape);
      Tensor x = random_tensor(shape, 1, -2, 5, device), gamma = random_tensor(Shape{shape[1]}, 2, 0.5, 1.5, device),
             beta = random_tensor(Shape{shape[1]}, 3, -1, 1, device);
      for (Tensor* leaf : {&x, &gamma, &beta}) leaf->set_wants_grad();
      const Tensor dy = random_tensor(Shape{shape.size(), 1}, 4, -1, 1, device);
      const OmpThreads threads(3);
      Tape tape;
      const Tensor y = layer_norm(x, gamma, beta);
      const Gradients gradients = tape.backward(weighted_sum(y, dy));
      check_close(y, reference(doubles(x), gamma, beta), reduction);
      const auto expected = reference_gradients(doubles(x), gamma, doubles(dy));
      check_close(gradients.of(x), expected[0], reduction);
      check_close(gradients.of(gamma), expected[1], reduction);
      check_close(gradients.of(beta), expected[2], reduction);
    }
}

TEST_CASE("layer_norm: a large mean does not swallow the variance") {
  const Tensor x = random_tensor(Shape{3, 64}, 4, 999, 1001), gamma = Tensor::full(Shape{64}, 1),
               beta(gamma.shape(), std::vector<float>(64));
  check_close(layer_norm(x, gamma, beta), reference(doubles(x), gamma, beta), 3e-4);  // x itself has 6e-5 per unit
}

TEST_CASE("layer_norm: gradients") {
  for (Device device : devices())
    for (int64_t d : {3, 33, 65}) {
      CAPTURE(d);
      check_gradients(layer_norm_of,
                      {random_tensor(Shape{2, 3, d}, 5, -2, 2, device), random_tensor(Shape{d}, 6, 0.5, 1.5, device),
                       random_tensor(Shape{d}, 7, -1, 1, device)});
    }
}

TEST_CASE("add_layer_norm: equals layer_norm of the sum, values and gradients, with and without dropout") {
  for (Device device : devices())
    for (float p : {0.0f, 0.3f})
      for (Shape shape : {Shape{1, 1}, Shape{3, 33}, Shape{2, 5, 64}, Shape{300, 129}}) {
        CAPTURE(p);
        const Dropout options{p, Key{8}};
        Tensor x = random_tensor(shape, 9, -1, 1, device), a = random_tensor(shape, 10, -1, 1, device);
        Tensor gamma = random_tensor(Shape{shape[-1]}, 11, 0.5, 1.5, device);
        Tensor beta = random_tensor(Shape{shape[-1]}, 12, -1, 1, device);
        const Tensor c = random_tensor(Shape{shape.size(), 1}, 13, -1, 1, device);
        for (Tensor* leaf : {&x, &a, &gamma, &beta}) leaf->set_wants_grad();

        const auto gradients = [&](auto f) {
          Tape tape;
          const Tensor y = f();
          const Gradients all = tape.backward(weighted_sum(y, c));
          return std::vector<Tensor>{y, all.of(x), all.of(a), all.of(gamma), all.of(beta)};
        };
        const auto fused = gradients([&] { return add_layer_norm(x, a, gamma, beta, options); });
        const auto composed = gradients([&] { return layer_norm(add(x, dropout(a, options)), gamma, beta); });
        for (size_t i = 0; i < fused.size(); ++i) {
          CAPTURE(i);
          check_close(fused[i], doubles(composed[i]), reduction);
        }
      }
}

TEST_CASE("add_layer_norm: gradients by differences") {
  for (Device device : devices())
    check_gradients(
        [](const std::vector<Tensor>& in) {
          return add_layer_norm(in[0], in[1], in[2], in[3], {0.25f, Key{14}});
        },
        {random_tensor(Shape{4, 31}, 15, -2, 2, device), random_tensor(Shape{4, 31}, 16, -1, 1, device),
         random_tensor(Shape{31}, 17, 0.5, 1.5, device), random_tensor(Shape{31}, 18, -1, 1, device)});
}

TEST_CASE("layer_norm: what it refuses") {
  const Tensor x(Shape{2, 3}), three(Shape{3}), two(Shape{2});
  check_fails([&] { layer_norm(Tensor(Shape{}), three, three); }, "layer_norm: x [] has no last axis");
  check_fails([&] { layer_norm(Tensor(Shape{2, 0}), three, three); }, "layer_norm: x [2,0] has no last axis");
  check_fails([&] { layer_norm(x, two, three); }, "layer_norm: gamma [2] does not match the last axis of x [2,3]");
  check_fails([&] { layer_norm(x, three, two); }, "layer_norm: beta [2] does not match");
  check_fails(
      [&] {
        add_layer_norm(x, Tensor(Shape{3, 2}), three, three);
      },
      "add_layer_norm: a [3,2] does not match x");
  check_fails([&] { add_layer_norm(x, {}, three, three); }, "add_layer_norm: a is empty");
  check_fails([&] { add_layer_norm(x, x, three, three, {2, {}}); }, "add_layer_norm: the dropout probability 2");
}
