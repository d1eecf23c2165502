#include <numeric>

#include "models/autoregressive.h"
#include "models/muon.h"
#include "ops/elementwise.h"
#include "ops/kernels/optimizers.h"
#include "ops/optimizers.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Matrix {
  int64_t rows, columns;
  std::vector<double> at;
  Matrix(int64_t r, int64_t c) : rows(r), columns(c), at(static_cast<size_t>(r * c)) {}
  double& operator()(int64_t i, int64_t j) { return at[static_cast<size_t>(i * columns + j)]; }
  double operator()(int64_t i, int64_t j) const { return at[static_cast<size_t>(i * columns + j)]; }
};

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.columns; ++j)
      for (int64_t k = 0; k < a.columns; ++k) c(i, j) += a(i, k) * b(k, j);
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.columns; ++j) t(j, i) = a(i, j);
  return t;
}

// Muon as its authors describe it, but of gradients of norm 1, in double; the powers of x from the left, whatever its
// shape.
struct Step {
  double momentum, size, decay;
};
struct Reference {
  Step o;
  Matrix p, m = Matrix(p.rows, p.columns);

  void step(std::vector<double> g) {
    const double norm = std::sqrt(std::inner_product(g.begin(), g.end(), g.begin(), 0.0));
    for (double& value : g) value /= norm + 1e-12;
    Matrix x = m;
    double square = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      m.at[i] = o.momentum * m.at[i] + (1 - o.momentum) * g[i];
      x.at[i] = (1 - o.momentum) * g[i] + o.momentum * m.at[i];
      square += x.at[i] * x.at[i];
    }
    for (double& value : x.at) value /= std::sqrt(square) + 1e-12;
    for (int k = 0; k < 5; ++k) {
      const Matrix gram = times(x, transposed(x)), third = times(gram, x), fifth = times(gram, third);
      for (size_t i = 0; i < g.size(); ++i) x.at[i] = 3.4445 * x.at[i] - 4.7750 * third.at[i] + 2.0315 * fifth.at[i];
    }
    const double size = o.size * std::sqrt(static_cast<double>(std::max(p.rows, p.columns)));
    for (size_t i = 0; i < g.size(); ++i) p.at[i] -= size * x.at[i] + o.decay * p.at[i];
  }
};

// The squares of a's singular values: Jacobi's rotations bring the smaller of a a^T and a^T a to its diagonal.
std::vector<double> squared_singular_values(const Matrix& a) {
  Matrix g = a.rows > a.columns ? times(transposed(a), a) : times(a, transposed(a));
  const int64_t n = g.rows;
  for (int sweep = 0; sweep < 12; ++sweep)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i + 1; j < n; ++j) {
        const double angle = 0.5 * std::atan2(2 * g(i, j), g(j, j) - g(i, i)), c = std::cos(angle), s = std::sin(angle);
        const auto rotate = [=](double& x, double& y) {
          const double old = x;
          x = c * old - s * y;
          y = s * old + c * y;
        };
        for (int64_t k = 0; k < n; ++k) rotate(g(i, k), g(j, k));
        for (int64_t k = 0; k < n; ++k) rotate(g(k, i), g(k, j));
      }
  std::vector<double> diagonal;
  for (int64_t i = 0; i < n; ++i) diagonal.push_back(g(i, i));
  return diagonal;
}

const std::vector<Shape> shapes{{3, 5}, {5, 3}, {33, 65}, {1, 4}, {4, 1}, {64, 64}, {130, 31}};

std::vector<Tensor> random_tensors(uint64_t seed, Device device) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : shapes) tensors.push_back(random_tensor(shape, ++seed, -1, 1, device));
  return tensors;
}

std::vector<Tensor> zeros(Device device) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : shapes) tensors.push_back(Tensor::full(shape, 0, device));
  return tensors;
}

void muon(std::vector<Tensor>& p, std::vector<Tensor>& m, const std::vector<Tensor>& g, const Step& o) {
  std::vector<MuonUpdate> updates;
  for (size_t i = 0; i < p.size(); ++i) updates.push_back({p[i], m[i], g[i]});
  const Tensor rates(Shape{2}, {static_cast<float>(o.size), static_cast<float>(o.decay)}, p[0].device());
  muon_step(updates, sums_of_squares(g), rates, o.momentum);
}

// What four updates leave of random parameters.
std::vector<std::vector<float>> four_updates(Device device) {
  std::vector<Tensor> p = random_tensors(100, device), m = zeros(device);
  for (uint64_t t = 1; t <= 4; ++t)
    muon(p, m, random_tensors(1000 * t, device), {.momentum = 0.95, .size = 0.1, .decay = 0.01});
  std::vector<std::vector<float>> values;
  for (size_t i = 0; i < p.size(); ++i) {
    values.push_back(p[i].to_vector());
    values.push_back(m[i].to_vector());
  }
  return values;
}

// A loss whose gradient with respect to each parameter is random.
Tensor loss_of(const Parameters& parameters, uint64_t seed) {
  Tensor loss;
  for (const auto& [name, tensor] : parameters) {
    const Tensor weights = random_tensor(Shape{tensor.size(), 1}, ++seed, -1, 1, tensor.device());
    const Tensor term = weighted_sum(tensor, weights);
    loss = loss ? add(loss, term) : term;
  }
  return loss;
}

Gradients gradients_of(const Parameters& parameters, uint64_t seed) {
  Tape tape;
  const Tensor loss = loss_of(parameters, seed);
  return tape.backward(loss);
}

void step(Optimizer& optimizer, const Parameters& parameters, uint64_t seed) {
  optimizer.step(gradients_of(parameters, seed));
}

std::vector<std::string> names(const Parameters& tensors) {
  std::vector<std::string> list;
  for (const auto& [name, tensor] : tensors) list.push_back(name);
  return list;
}

const AutoregressiveConfig small{
    .encoder = {.layers = 2, .heads = 2, .head_dim = 4, .feed_forward = 12}, .vocabulary = 5, .outputs = 5};

}  // namespace

TEST_CASE("muon_step: four updates equal its definition in double") {
  const Step o{.momentum = 0.95, .size = 0.1, .decay = 0.01};
  for (const Device device : devices()) {
    std::vector<Tensor> p = random_tensors(100, device), m = zeros(device);
    std::vector<Reference> references;
    for (const Tensor& start : p) {
      Matrix matrix(start.shape()[0], start.shape()[1]);
      matrix.at = doubles(start);
      references.push_back({.o = o, .p = matrix});
    }
    for (uint64_t t = 1; t <= 4; ++t) {
      const std::vector<Tensor> g = random_tensors(1000 * t, device);
      muon(p, m, g, o);
      for (size_t i = 0; i < p.size(); ++i) {
        CAPTURE(p[i].shape());
        references[i].step(doubles(g[i]));
        check_close(m[i], references[i].m.at, rounding);
        check_close(p[i], references[i].p.at, reduction);
      }
    }
  }
}

TEST_CASE("muon_step takes the singular values of a random matrix to about 1, and the step to its size") {
  for (const Device device : devices()) {
    std::vector<Tensor> p = zeros(device), m = zeros(device);
    muon(p, m, random_tensors(7, device), {.momentum = 0.95, .size = 1, .decay = 0});
    for (const Tensor& step : p) {
      CAPTURE(step.shape());
      if (step.shape()[0] == step.shape()[1]) continue;  // of many singular values some are too small to get there
      Matrix x(step.shape()[0], step.shape()[1]);
      x.at = doubles(step);
      const double larger = static_cast<double>(std::max(x.rows, x.columns));
      for (const double square : squared_singular_values(x)) {
        CHECK(std::sqrt(square / larger) > 0.6);
        CHECK(std::sqrt(square / larger) < 1.3);
      }
      const double squares = std::inner_product(x.at.begin(), x.at.end(), x.at.begin(), 0.0);
      CHECK(std::sqrt(squares / static_cast<double>(x.at.size())) == doctest::Approx(1).epsilon(0.35));
    }
  }
}

TEST_CASE("muon_step: a gradient of zeros changes nothing, and there may be no numbers and no matrices") {
  for (const Device device : devices()) {
    std::vector<Tensor> p = random_tensors(1, device), m = zeros(device);
    muon(p, m, zeros(device), {.momentum = 0.95, .size = 1, .decay = 0});
    const std::vector<Tensor> before = random_tensors(1, device);
    for (size_t i = 0; i < p.size(); ++i) CHECK(p[i].to_vector() == before[i].to_vector());
    const Tensor empty(Shape{0, 3}, device);
    const Tensor rates(Shape{2}, {1, 0}, device);
    muon_step({{empty, empty, empty}}, sums_of_squares({empty}), rates, 0.9);
    muon_step({}, sums_of_squares({}), rates, 0.9);
  }
}

TEST_CASE("muon_step: after gradients that are not finite, in any matrix, nothing has changed") {
  for (const Device device : devices())
    for (const float bad : {NAN, INFINITY}) {
      std::vector<Tensor> p = random_tensors(1, device), m = random_tensors(2, device), g = random_tensors(3, device);
      g.back() = scale(g.back(), bad);
      muon(p, m, g, {.momentum = 0.95, .size = 1, .decay = 0.5});
      const std::vector<Tensor> old_p = random_tensors(1, device), old_m = random_tensors(2, device);
      for (size_t i = 0; i < p.size(); ++i) {
        CHECK(p[i].to_vector() == old_p[i].to_vector());
        CHECK(m[i].to_vector() == old_m[i].to_vector());
      }
    }
}

TEST_CASE("muon_step refuses squares that are not one for each matrix and one of all, and rates that are not two") {
  const Tensor x = random_tensor(Shape{2, 3}, 1), rates(Shape{2}, {1, 0});
  const std::vector<MuonUpdate> updates{{clone(x), clone(x), x}};
  check_fails([&] { muon_step(updates, Tensor(Shape{1}), rates, 0.9); }, "squares [1] do not match 1 updates");
  check_fails([&] { muon_step(updates, Tensor(Shape{2}), Tensor(Shape{3}), 0.9); }, "rates [3] are not size and decay");
}

TEST_CASE("the number of threads changes nothing in muon_step, nor does another run") {
  for (const Device device : devices()) {
    const auto expected = four_updates(device);
    for (const int count : {1, 2, 3, 8}) {
      const OmpThreads threads(count);
      CHECK(four_updates(device) == expected);
    }
  }
}

TEST_CASE("Optimizer: Muon takes the matrices of values and feed-forward layers, RAdam what is left") {
  const AutoregressiveTransformer model(small, Key{1});
  const Parameters parameters = model.parameters();
  std::vector<std::string> expected, moments = names(Optimizer(parameters, authors_options, true).state());
  for (const std::string& name : names(parameters)) {
    expected.push_back("optimizer.m." + name);
    const bool matrix = name.ends_with("weight") && (name.find(".value_projection.") != std::string::npos ||
                                                     name.find(".out_projection.") != std::string::npos ||
                                                     name.find(".linear") != std::string::npos);
    if (!matrix) expected.push_back("optimizer.v." + name);
  }
  std::sort(expected.begin(), expected.end());
  std::sort(moments.begin(), moments.end());
  CHECK(moments == expected);
  CHECK(moments.size() == 2 * parameters.size() - 2 * 4);  // two layers
  CHECK(names(Optimizer(parameters, authors_options).state()) == names(Adam(parameters, authors_options).state()));
  check_fails([] { Muon({{"bias", Tensor(Shape{3})}}, 1, 0); }, "Muon: bias [3] is not a matrix");
}

TEST_CASE("Optimizer: each parameter moves as its own rule says, and Muon's with its own weight decay, or none") {
  for (const Device device : devices())
    for (const double decay : {0.3, 0.0}) {
      const AdamOptions options{.lr = 0.1, .rectify = true, .weight_decay = 0.02, .muon_decay = decay, .clip = 0.01};
      const auto both = AutoregressiveTransformer(small, Key{1}, device).parameters();
      const auto radam = AutoregressiveTransformer(small, Key{1}, device).parameters();
      Optimizer optimizer(both, options, true);
      Adam alone(radam, options);
      std::vector<Reference> references;
      for (const auto& [name, tensor] : both) {
        Matrix matrix(tensor.shape()[0], tensor.shape().rank() == 2 ? tensor.shape()[1] : 1);
        matrix.at = doubles(tensor);
        references.push_back({.o = {.momentum = 0.95, .size = 0, .decay = 0}, .p = matrix});
      }
      const std::vector<std::string> moments = names(optimizer.state());
      for (const uint64_t t : {1, 2, 3}) {
        CAPTURE(t);
        const double lr = t == 3 ? 0.05 : 0.1;
        if (t == 3) alone.set_lr(lr), optimizer.set_lr(lr);
        const Gradients gradients = gradients_of(radam, 100 * t);
        alone.step(gradients);
        step(optimizer, both, 100 * t);
        for (size_t i = 0; i < both.size(); ++i) {
          CAPTURE(both[i].name);
          if (std::count(moments.begin(), moments.end(), "optimizer.v." + both[i].name)) {
            CHECK(both[i].tensor.to_vector() == radam[i].tensor.to_vector());
          } else {
            references[i].o.size = 0.4 * lr;
            references[i].o.decay = decay * lr;
            references[i].step(doubles(gradients.of(radam[i].tensor)));
            check_close(both[i].tensor, references[i].p.at, reduction);
          }
        }
      }
    }
}

TEST_CASE("Optimizer goes on from its saved state to the same bytes, also with another learning rate") {
  for (const Device device : devices()) {
    const auto straight = AutoregressiveTransformer(small, Key{1}, device).parameters();
    const auto resumed = AutoregressiveTransformer(small, Key{1}, device).parameters();
    Optimizer one(straight, authors_options, true), first(resumed, authors_options, true),
        second(resumed, authors_options, true);
    for (uint64_t t = 1; t <= 7; ++t) step(one, straight, 50 * t);
    for (uint64_t t = 1; t <= 7; ++t) step(first, resumed, 50 * t);
    auto from = first.state(), to = second.state();
    REQUIRE(names(from) == names(to));
    for (size_t i = 0; i < from.size(); ++i)
      copy(to[i].tensor.data(), device, from[i].tensor.data(), device,
           static_cast<size_t>(from[i].tensor.size()) * sizeof(float));
    second.set_steps(7);
    one.set_lr(1e-4);
    second.set_lr(1e-4);
    step(one, straight, 1);
    step(second, resumed, 1);
    for (size_t i = 0; i < straight.size(); ++i) CHECK(straight[i].tensor.to_vector() == resumed[i].tensor.to_vector());
  }
}
