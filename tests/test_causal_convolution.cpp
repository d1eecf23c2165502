// causal_convolution against its definition in double.
#include "ops/causal_convolution.h"
#include "ops/elementwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Case {
  int64_t b, l, d, k;
  bool silu;
  Tensor x, weight, before;

  Case(int64_t batch, int64_t length, int64_t width, int64_t taps, bool with_silu, bool has_before, Device device)
      : b(batch), l(length), d(width), k(taps), silu(with_silu) {
    x = random_tensor(Shape{b, l, d}, 1, -2, 2, device).set_wants_grad();
    weight = random_tensor(Shape{d, k}, 2, -1, 1, device).set_wants_grad();
    if (has_before) before = random_tensor(Shape{b, k - 1, d}, 3, -2, 2, device).set_wants_grad();
  }
  Tensor operator()() const { return causal_convolution(x, weight, {silu}, before); }
};

// y, and the gradients of x, weight and before for the cotangent dy.
struct Reference {
  std::vector<double> y, dx, dweight, dbefore;

  Reference(const Case& c, const std::vector<double>& dy)
      : y(dy.size()),
        dx(dy.size()),
        dweight(static_cast<size_t>(c.d * c.k)),
        dbefore(static_cast<size_t>(c.b * (c.k - 1) * c.d)) {
    const auto x = doubles(c.x), w = doubles(c.weight);
    const auto before = c.before ? doubles(c.before) : std::vector<double>(dbefore.size());
    for (int64_t b = 0; b < c.b; ++b)
      for (int64_t t = 0; t < c.l; ++t)
        for (int64_t channel = 0; channel < c.d; ++channel) {
          const auto i = static_cast<size_t>((b * c.l + t) * c.d + channel);
          const auto at = [&](int64_t j) {  // of x_{t-j}: in x, or from its end on in before
            return static_cast<size_t>(t >= j ? (b * c.l + t - j) * c.d + channel
                                              : (b * (c.k - 1) + c.k - 1 + t - j) * c.d + channel);
          };
          const auto weight = [&](int64_t j) { return static_cast<size_t>(channel * c.k + j); };
          double z = 0;
          for (int64_t j = 0; j < c.k; ++j) z += w[weight(j)] * (t >= j ? x : before)[at(j)];
          const double part = 1 / (1 + std::exp(-z));
          y[i] = c.silu ? z * part : z;
          const double dz = c.silu ? dy[i] * part * (1 + z * (1 - part)) : dy[i];
          for (int64_t j = 0; j < c.k; ++j) {
            dweight[weight(j)] += dz * (t >= j ? x : before)[at(j)];
            (t >= j ? dx : dbefore)[at(j)] += dz * w[weight(j)];
          }
        }
  }
};

void for_all_cases(const std::function<void(const Case&)>& f) {
  for (const Device device : devices())
    for (const auto& [b, l, d, k] : std::vector<std::array<int64_t, 4>>{{1, 1, 1, 1},
                                                                        {2, 3, 5, 4},
                                                                        {1, 2, 33, 16},
                                                                        {3, 70, 20, 3},
                                                                        {2, 600, 37, 4},
                                                                        {1, 5, 300, 4},
                                                                        {2, 3, 0, 4},
                                                                        {1, 0, 3, 2},
                                                                        {0, 4, 3, 2}})
      for (const bool silu : {false, true})
        for (const bool has_before : {false, true}) {
          CAPTURE(name(device));
          CAPTURE(b);
          CAPTURE(l);
          CAPTURE(k);
          CAPTURE(silu);
          CAPTURE(has_before);
          f(Case(b, l, d, k, silu, has_before, device));
        }
}

}  // namespace

TEST_CASE("causal_convolution and its gradients equal the definition") {
  for_all_cases([](const Case& c) {
    const Tensor dy = random_tensor(Shape{c.x.size(), 1}, 4, -1, 1, c.x.device());
    const Reference expected(c, doubles(dy));
    Tape tape;
    const Tensor y = c();
    check_close(y, expected.y, reduction);
    const Gradients g = tape.backward(weighted_sum(y, dy));
    check_close(g.of(c.x), expected.dx, reduction);
    check_close(g.of(c.weight), expected.dweight, reduction);
    if (c.before) check_close(g.of(c.before), expected.dbefore, reduction);
  });
}

TEST_CASE("causal_convolution: single positions give what the whole sequence gives") {
  for_all_cases([](const Case& c) {
    if (!c.before) return;
    const Tensor whole = c(), x = detach(c.x), weight = detach(c.weight);
    Tensor kept = clone(c.before);
    for (int64_t t = 0; t < c.l; ++t)
      check_close(causal_convolution_step(slice(x, 1, t, 1), weight, {c.silu}, kept), doubles(slice(whole, 1, t, 1)),
                  rounding);
    const Tensor all = concat({detach(c.before), x}, 1);
    CHECK(kept.to_vector() == slice(all, 1, c.l, c.k - 1).to_vector());
  });
}

TEST_CASE("causal_convolution: the same bytes with any number of threads") {
  const Case c(3, 700, 64, 4, true, true, Device::cpu);
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 5}) {
    const OmpThreads count(threads);
    Tape tape;
    const Tensor y = c();
    const Gradients g = tape.backward(sum(square(y)));
    const std::vector<std::vector<float>> results{y.to_vector(), g.of(c.x).to_vector(), g.of(c.weight).to_vector(),
                                                  g.of(c.before).to_vector()};
    if (first.empty()) first = results;
    CHECK(results == first);
  }
}

TEST_CASE("causal_convolution: tensors that do not fit are refused by name") {
  const Tensor x(Shape{2, 3, 4}), weight(Shape{4, 3});
  check_fails([&] { causal_convolution(Tensor(Shape{3, 4}), weight); }, "causal_convolution: x [3,4] is not [B,L,D]");
  check_fails([&] { causal_convolution(x, Tensor(Shape{3, 4})); }, "the weight [3,4] is not [4,K] with K from 1 to 16");
  check_fails([&] { causal_convolution(x, Tensor(Shape{4, 17})); }, "the weight [4,17]");
  check_fails([&] { causal_convolution(x, weight, {}, Tensor(Shape{2, 3, 4})); }, "before [2,3,4] is not [2,2,4]");
  Tensor none, before(Shape{2, 2, 4});
  check_fails([&] { causal_convolution_step(x, weight, {}, before); }, "x [2,3,4] is not [B,1,D]");
  check_fails([&] { causal_convolution_step(slice(x, 1, 0, 1), weight, {}, none); }, "before is empty");
}
