#include <numeric>
#include <tuple>

#include "models/optimizer.h"
#include "ops/elementwise.h"
#include "ops/optimizers.h"
#include "ops/reductions.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// RAdam on one tensor as its paper and the authors' training describe it, or AdamW, in double.
struct Reference {
  AdamOptions o;
  std::vector<double> p, m = std::vector<double>(p.size()), v = m;
  int t = 0;

  void step(std::vector<double> g, double global_norm) {
    if (o.global_clip > 0)
      for (double& x : g) x *= std::min(1.0, o.global_clip / (global_norm + 1e-6));
    double norm = 0;
    for (const double x : g) norm += x * x;
    const double scale = o.clip > 0 ? std::min(1.0, o.clip / (std::sqrt(norm) + 1e-6)) : 1;
    ++t;
    const double n_max = 2 / (1 - o.beta2) - 1;
    const double n = n_max - 2 * t * std::pow(o.beta2, t) / (1 - std::pow(o.beta2, t));
    const double variance = (n - 4) * (n - 2) * n_max / ((n_max - 4) * (n_max - 2) * n);
    for (size_t i = 0; i < p.size(); ++i) {
      const double x = scale * g[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * x;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * x * x;
      const double m_hat = m[i] / (1 - std::pow(o.beta1, t));
      p[i] *= 1 - o.lr * o.weight_decay;
      if (!o.rectify)
        p[i] -= o.lr * m_hat / (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps);
      else if (t <= 5)
        p[i] -= o.lr * m_hat;
      else
        p[i] -= o.lr * std::sqrt(variance * (1 - std::pow(o.beta2, t))) * m_hat / (std::sqrt(v[i]) + o.eps);
    }
  }
};

// A loss whose gradient with respect to each parameter [1,n] is the given vector.
Tensor loss_with(const std::vector<NamedTensor>& parameters, const std::vector<std::vector<float>>& gradient) {
  Tensor loss;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& p = parameters[i].tensor;
    const Tensor term = weighted_sum(p, Tensor(Shape{p.size()}, gradient[i], p.device()));
    loss = loss ? add(loss, term) : term;
  }
  return loss;
}

std::vector<NamedTensor> make_parameters(const std::vector<int64_t>& sizes, Device device) {
  std::vector<NamedTensor> parameters;
  for (const int64_t n : sizes)
    parameters.push_back(
        {std::to_string(n), random_tensor(Shape{1, n}, static_cast<uint64_t>(n), -1, 1, device).set_wants_grad()});
  return parameters;
}

std::vector<std::vector<float>> make_gradients(const std::vector<int64_t>& sizes, uint64_t step, float size) {
  std::vector<std::vector<float>> gradients;
  for (const int64_t n : sizes)
    gradients.push_back(random_tensor(Shape{n}, 1000 * step + static_cast<uint64_t>(n), -size, size).to_vector());
  return gradients;
}

void step(Adam& optimizer, const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& sizes, uint64_t t,
          float size) {
  Tape tape;
  const Tensor loss = loss_with(parameters, make_gradients(sizes, t, size));
  optimizer.step(tape.backward(loss));
}

}  // namespace

TEST_CASE("sums_of_squares: exact to one rounding, for any sizes and any number of tensors") {
  for (Device device : devices()) {
    std::vector<Tensor> gradients;
    std::vector<double> expected;
    double total = 0;
    for (int64_t i = 0; i < 150; ++i) {  // more than one launch takes
      const int64_t sizes[] = {0, 1, 3, 31, 33, 65, 4095, 4097, 20011};
      const int64_t n = i < 9 ? sizes[i] : i;
      gradients.push_back(random_tensor(Shape{n}, static_cast<uint64_t>(i), -3, 3, device));
      expected.push_back(0);
      for (const double value : doubles(gradients.back())) expected.back() += value * value;
      total += expected.back();
    }
    expected.push_back(total);
    const std::vector<double> actual = doubles(sums_of_squares(gradients));
    for (size_t i = 0; i < actual.size(); ++i) CHECK(actual[i] == doctest::Approx(expected[i]).epsilon(1e-7));
  }
}

TEST_CASE("RAdam, AdamW: twelve updates equal the definition; RAdam's first five have no adaptive term") {
  const std::vector<int64_t> sizes{1, 3, 31, 33, 65, 9000};
  for (Device device : devices())
    for (const auto& [clip, global_clip, rectify] : std::vector<std::tuple<double, double, bool>>{
             {1, 0, true}, {0, 0, true}, {0, 2, true}, {1, 3, true}, {1, 0, false}})
      for (float size : {0.01f, 4.0f}) {
        CAPTURE(rectify);
        CAPTURE(clip);
        CAPTURE(global_clip);
        CAPTURE(size);
        const AdamOptions options{
            .lr = 0.01, .eps = 1e-3, .rectify = rectify, .weight_decay = 0.1, .clip = clip, .global_clip = global_clip};
        const auto parameters = make_parameters(sizes, device);
        Adam optimizer(parameters, options);
        std::vector<Reference> references;
        for (const auto& [name, tensor] : parameters) references.push_back({.o = options, .p = doubles(tensor)});
        for (uint64_t t = 1; t <= 12; ++t) {
          step(optimizer, parameters, sizes, t, size);
          const auto gradients = make_gradients(sizes, t, size);
          double norm = 0;
          for (const auto& gradient : gradients)
            for (const double g : gradient) norm += g * g;
          for (size_t i = 0; i < sizes.size(); ++i)
            references[i].step({gradients[i].begin(), gradients[i].end()}, std::sqrt(norm));
          if (t == 5 || t == 6 || t == 12)
            for (size_t i = 0; i < sizes.size(); ++i)
              CHECK_LE(distance(doubles(parameters[i].tensor), references[i].p), rounding);
        }
        CHECK(optimizer.steps() == 12);
      }
}

TEST_CASE("RAdam clips each of many tensors by its own norm") {  // CUDA's kernels take 64 at a time
  std::vector<int64_t> sizes(70);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (Device device : devices()) {
    const AdamOptions options{.lr = 0.01, .rectify = true, .weight_decay = 0.01, .clip = 1};
    const auto parameters = make_parameters(sizes, device);
    Adam optimizer(parameters, options);
    std::vector<Reference> references;
    for (const auto& [name, tensor] : parameters) references.push_back({.o = options, .p = doubles(tensor)});
    step(optimizer, parameters, sizes, 1, 4);
    const auto gradients = make_gradients(sizes, 1, 4);
    for (size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(i);
      references[i].step({gradients[i].begin(), gradients[i].end()}, 0);
      check_close(parameters[i].tensor, references[i].p, rounding);
    }
  }
}

TEST_CASE("RAdam goes on from its saved state to the same bytes, also with another learning rate") {
  const std::vector<int64_t> sizes{3, 65};
  for (Device device : devices()) {
    const auto straight = make_parameters(sizes, device), resumed = make_parameters(sizes, device);
    Adam one(straight, authors_options), first(resumed, authors_options), second(resumed, authors_options);
    for (uint64_t t = 1; t <= 8; ++t) {
      if (t == 8) one.set_lr(1e-4);
      step(one, straight, sizes, t, 1);
    }
    for (uint64_t t = 1; t <= 7; ++t) step(first, resumed, sizes, t, 1);
    auto from = first.state(), to = second.state();
    REQUIRE(from.size() == 4);
    CHECK(from[0].name == "optimizer.m.3");
    CHECK(from[3].name == "optimizer.v.65");
    for (size_t i = 0; i < 4; ++i)
      copy(to[i].tensor.data(), device, from[i].tensor.data(), device,
           static_cast<size_t>(from[i].tensor.size()) * sizeof(float));
    second.set_steps(first.steps());
    second.set_lr(1e-4);
    step(second, resumed, sizes, 8, 1);
    for (size_t i = 0; i < 2; ++i) CHECK(straight[i].tensor.to_vector() == resumed[i].tensor.to_vector());
  }
}

TEST_CASE("the norms tell of a gradient that is not finite, and then an update changes nothing") {
  for (Device device : devices()) {
    const auto parameters = make_parameters({3, 65}, device);
    const auto before = parameters[1].tensor.to_vector();
    for (const float bad : {NAN, INFINITY}) {
      std::vector<std::vector<float>> planted = make_gradients({3, 65}, 1, 1);
      planted[1][64] = bad;
      Tape tape;
      const Tensor loss = loss_with(parameters, planted);
      const Gradients gradients = tape.backward(loss);
      const std::vector<float> squares = squared_norms(parameters, gradients).to_vector();
      Adam optimizer(parameters, {.rectify = true, .weight_decay = 0.1, .clip = 1});
      optimizer.step(gradients);
      for (const NamedTensor& moment : optimizer.state())
        CHECK(moment.tensor.to_vector() == std::vector<float>(static_cast<size_t>(moment.tensor.size())));
      CHECK(std::isfinite(squares[0]));
      CHECK_FALSE(std::isfinite(squares[1]));
      CHECK_FALSE(std::isfinite(squares[2]));
    }
    CHECK(parameters[1].tensor.to_vector() == before);
  }
}

TEST_CASE("Adam, SGD: the first two updates by hand, with defaults that neither clip nor decay") {
  for (Device device : devices()) {
    Tensor p(Shape{2}, {1, -2}, device), q(Shape{2}, {1, -2}, device);
    Adam adam({{"p", p.set_wants_grad()}});
    Sgd sgd({{"q", q.set_wants_grad()}}, 0.1, 0.5);
    double m = 0, v = 0, expected = 1, momentum = 0, expected_sgd = 1;
    for (int t = 1; t <= 2; ++t) {
      const double g = t == 1 ? 300 : -20;  // of the first number
      const Tensor factors(Shape{2}, {static_cast<float>(g), 0}, device);
      {
        Tape tape;
        adam.step(tape.backward(sum(multiply(p, factors))));
      }
      Tape tape;
      sgd.step(tape.backward(sum(multiply(q, factors))));
      m = 0.9 * m + 0.1 * g, v = 0.999 * v + 0.001 * g * g;
      expected -= 1e-3 * m / (1 - std::pow(0.9, t)) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
      momentum = 0.5 * momentum + g, expected_sgd -= 0.1 * momentum;
      CHECK(p.to_vector()[0] == doctest::Approx(expected).epsilon(1e-6));
      CHECK(p.to_vector()[1] == -2);
      CHECK(q.to_vector()[0] == doctest::Approx(expected_sgd).epsilon(1e-6));
      CHECK(q.to_vector()[1] == -2);
    }
  }
}

TEST_CASE("RAdam: a parameter that the loss does not depend on is an error and changes nothing") {
  auto parameters = make_parameters({3, 5}, Device::cpu);
  Adam optimizer(parameters, authors_options);
  const auto before = parameters[0].tensor.to_vector();
  Tape tape;
  const Tensor loss = loss_with({parameters[0]}, {{1, 2, 3}});
  const Gradients gradients = tape.backward(loss);
  check_fails([&] { optimizer.step(gradients); }, "the loss does not depend on this tensor [1,5]");
  CHECK(parameters[0].tensor.to_vector() == before);
  CHECK(optimizer.steps() == 0);
}

TEST_CASE("radam_step refuses squared norms that are not one for each tensor, and one of all") {
  const Tensor x = random_tensor(Shape{3}, 1);
  const Tensor rates(Shape{4});
  const std::vector<RAdamUpdate> updates{{clone(x), clone(x), clone(x), x}};
  for (const int64_t norms : {1, 3})
    check_fails([&] { radam_step(updates, Tensor(Shape{norms}), 0, rates, {}); }, "from 0 on do not match 1 updates");
  check_fails([&] { radam_step(updates, Tensor(Shape{2}), -1, rates, {}); }, "from -1 on do not match 1 updates");
  check_fails([&] { radam_step(updates, Tensor(Shape{2}), 0, Tensor(Shape{2}), {}); },
              "rates [2] are not size, decay, adaptive and eps");
}
