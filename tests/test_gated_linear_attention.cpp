// Gated linear attention against its recurrence in double, which keeps every state.
#include <array>
#include <cmath>
#include <optional>

#include "engine/memory.h"
#include "ops/elementwise.h"
#include "ops/gated_linear_attention.h"
#include "ops/linear_attention.h"
#include "ops/numerics.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

enum class Decay { none, head, channel };

// Inputs of one call. Keys have length 1 at most, as in DeltaNet, or the delta rule's states would grow without bound.
struct Case {
  int64_t b, l, h, e, m;
  UpdateRule rule;
  Tensor q, k, v, beta, decay, state;
  Indices lengths;

  Case(const std::array<int64_t, 5>& sizes, UpdateRule update, Decay kind, bool has_others, Device device)
      : b(sizes[0]), l(sizes[1]), h(sizes[2]), e(sizes[3]), m(sizes[4]), rule(update) {
    q = random_tensor(Shape{b, l, h, e}, 1, -1, 1, device);
    k = l2_normalize(random_tensor(Shape{b, l, h, e}, 2, -1, 1, device));
    v = random_tensor(Shape{b, l, h, m}, 3, -1, 1, device);
    if (kind != Decay::none) decay = decays(kind == Decay::head ? Shape{b, l, h} : q.shape(), device);
    if (!has_others) return;
    std::vector<float> strengths = random_tensor(Shape{b, l, h}, 5, 0, 1).to_vector();
    for (size_t i = 0; i < strengths.size(); ++i)
      if (i % 5 < 3) strengths[i] = static_cast<float>(i % 5);  // 0, 1 and 2
    beta = Tensor(Shape{b, l, h}, strengths, device);
    state = random_tensor(Shape{b, h, e, m}, 6, -1, 1, device);
    std::vector<int32_t> some;
    for (int64_t n = 0; n < b; ++n) some.push_back(static_cast<int32_t>(n == 1 ? 0 : l - l / (n + 3)));
    lengths = Indices(Shape{b}, some, device);
  }
  // From -1000, where nothing is kept, to 0.
  static Tensor decays(const Shape& shape, Device device) {
    std::vector<float> g = random_tensor(shape, 4, -0.5f, 0).to_vector();
    for (size_t i = 0; i < g.size(); i += 3) g[i] = i % 2 ? 0.0f : i % 4 ? -45.0f : i % 8 ? -3.0f : -1000.0f;
    return Tensor(shape, g, device);
  }

  std::vector<Tensor> inputs() const {
    std::vector<Tensor> all{q, k, v};
    for (const Tensor& x : {beta, decay, state})
      if (x) all.push_back(x);
    return all;
  }
  GatedLinearResult operator()(const std::vector<Tensor>& in) const {
    size_t next = 3;
    const auto given = [&](const Tensor& x) { return x ? in[next++] : Tensor(); };
    const Tensor own_beta = given(beta), own_decay = given(decay), own_state = given(state);
    return gated_linear_attention(in[0], in[1], in[2], {rule, own_beta, own_decay}, own_state, lengths);
  }
};

// y, the last state and, from dy and ds1, all gradients, in the order of Case::inputs().
struct Reference {
  std::vector<double> y, s1;
  std::vector<std::vector<double>> gradients;

  Reference(const Case& x, const std::vector<double>& dy, const std::vector<double>& ds1) {
    const auto q = doubles(x.q), k = doubles(x.k), v = doubles(x.v);
    const auto lengths = x.lengths ? x.lengths.to_vector() : std::vector<int32_t>();
    const bool per_channel = x.decay && x.decay.shape().rank() == 4;
    const auto e = static_cast<size_t>(x.e), m = static_cast<size_t>(x.m);
    std::vector<double> beta = x.beta ? doubles(x.beta) : std::vector<double>(q.size() / e, 1.0);
    const std::vector<double> g = x.decay ? doubles(x.decay) : std::vector<double>(beta.size(), 0.0);
    const std::vector<double> s0 = x.state ? doubles(x.state) : std::vector<double>(ds1.size(), 0.0);
    y.resize(v.size());
    s1.resize(ds1.size());
    std::vector<double> dq(q.size()), dk(k.size()), dv(v.size()), dbeta(beta.size()), dg(g.size()), ds0(s0.size());

    for (int64_t n = 0; n < x.b * x.h; ++n) {
      const int64_t b = n / x.h, end = lengths.empty() ? x.l : lengths[static_cast<size_t>(b)];
      const auto at = [&](int64_t t) { return static_cast<size_t>((b * x.l + t) * x.h + n % x.h); };
      const auto kept = [&](int64_t t, size_t c) {
        return t >= end ? 1.0 : std::exp(g[per_channel ? at(t) * e + c : at(t)]);
      };
      using State = std::vector<double>;  // [E,M]
      const auto first = s0.begin() + n * x.e * x.m;
      std::vector<State> decayed, after;  // a_t S_{t-1}, S_t
      State s(first, first + x.e * x.m);
      std::vector<std::vector<double>> missing;  // w_t
      for (int64_t t = 0; t < x.l; ++t) {
        const size_t i = at(t);
        for (size_t c = 0; c < e * m; ++c) s[c] *= kept(t, c / m);
        decayed.push_back(s);
        std::vector<double> w(m);
        for (size_t j = 0; j < m; ++j) {
          w[j] = v[i * m + j];
          for (size_t c = 0; x.rule == UpdateRule::delta && c < e; ++c) w[j] -= k[i * e + c] * s[c * m + j];
        }
        for (size_t c = 0; t < end && c < e * m; ++c) s[c] += beta[i] * k[i * e + c / m] * w[c % m];
        missing.push_back(w);
        after.push_back(s);
        for (size_t c = 0; c < e * m; ++c) y[i * m + c % m] += q[i * e + c / m] * s[c];
      }
      std::copy(s.begin(), s.end(), s1.begin() + n * x.e * x.m);

      State d(ds1.begin() + n * x.e * x.m, ds1.begin() + (n + 1) * x.e * x.m);
      for (int64_t t = x.l - 1; t >= 0; --t) {
        const size_t i = at(t);
        const auto& w = missing[static_cast<size_t>(t)];
        const State &before = decayed[static_cast<size_t>(t)], &now = after[static_cast<size_t>(t)];
        for (size_t c = 0; c < e * m; ++c) {
          dq[i * e + c / m] += now[c] * dy[i * m + c % m];
          d[c] += q[i * e + c / m] * dy[i * m + c % m];
        }
        if (t >= end) continue;
        std::vector<double> du(m);
        for (size_t c = 0; c < e * m; ++c) du[c % m] += d[c] * k[i * e + c / m];
        for (size_t j = 0; j < m; ++j) dv[i * m + j] = beta[i] * du[j], dbeta[i] += du[j] * w[j];
        for (size_t c = 0; c < e * m; ++c) {
          dk[i * e + c / m] += d[c] * beta[i] * w[c % m];
          if (x.rule != UpdateRule::delta) continue;
          dk[i * e + c / m] -= before[c] * dv[i * m + c % m];
          d[c] -= k[i * e + c / m] * dv[i * m + c % m];
        }
        for (size_t c = 0; c < e * m; ++c) {
          dg[per_channel ? i * e + c / m : i] += d[c] * before[c];
          d[c] *= kept(t, c / m);
        }
      }
      std::copy(d.begin(), d.end(), ds0.begin() + n * x.e * x.m);
    }
    gradients = {dq, dk, dv};
    if (x.beta) gradients.push_back(dbeta);
    if (x.decay) gradients.push_back(dg);
    if (x.state) gradients.push_back(ds0);
  }
};

void for_all_cases(const std::vector<std::array<int64_t, 5>>& shapes, const std::function<void(const Case&)>& f) {
  for (const Device device : devices())
    for (const auto& shape : shapes)
      for (const UpdateRule rule : {UpdateRule::additive, UpdateRule::delta})
        for (const Decay decay : {Decay::none, Decay::head, Decay::channel})
          for (const bool has_others : {false, true}) {
            CAPTURE(name(device));
            CAPTURE(shape[1]);
            CAPTURE(shape[3]);
            CAPTURE(shape[4]);
            CAPTURE(static_cast<int>(rule));
            CAPTURE(static_cast<int>(decay));
            CAPTURE(has_others);
            f(Case(shape, rule, decay, has_others, device));
          }
}

void check_against_recurrence(const Case& x) {
  const Device device = x.q.device();
  const Tensor dy = random_tensor(Shape{x.v.size(), 1}, 7, -1, 1, device);
  const Tensor ds1 = random_tensor(Shape{x.b * x.h * x.e * x.m, 1}, 8, -1, 1, device);
  const Reference expected(x, doubles(dy), doubles(ds1));
  std::vector<Tensor> inputs = x.inputs();
  for (Tensor& input : inputs) input = clone(input).set_wants_grad();
  Tape tape;
  const auto [y, state] = x(inputs);
  check_close(y, expected.y, reduction);
  check_close(state, expected.s1, reduction);
  const Gradients g = tape.backward(add(weighted_sum(y, dy), weighted_sum(state, ds1)));
  for (size_t i = 0; i < inputs.size(); ++i) {
    CAPTURE(i);
    check_close(g.of(inputs[i]), expected.gradients[i], reduction);
  }
}

}  // namespace

TEST_CASE("gated_linear_attention and its gradients equal the recurrence, for both rules and all gates") {
  for_all_cases({{1, 1, 1, 1, 1}, {3, 9, 2, 3, 5}, {2, 40, 1, 33, 20}, {1, 70, 2, 16, 32}, {1, 35, 1, 20, 40}},
                check_against_recurrence);
  for (const Device device : devices())
    check_against_recurrence(Case({1, 2, 1, 512, 33}, UpdateRule::delta, Decay::channel, true, device));
}

// On CUDA long sequences are cut, the more the larger the machine: on the emulator's smallest one sequence of 256
// positions or more, if M is at most 32.
TEST_CASE("gated_linear_attention, cut into segments, equals the recurrence") {
  for (const Device device : devices()) {
    for (const UpdateRule rule : {UpdateRule::additive, UpdateRule::delta}) {
      for (const Decay decay : {Decay::none, Decay::head, Decay::channel})
        check_against_recurrence(Case({1, 270, 1, 5, 3}, rule, decay, decay == Decay::channel, device));
      check_against_recurrence(Case({1, 300, 1, 40, 20}, rule, Decay::head, true, device));
    }
    check_against_recurrence(Case({2, 260, 3, 20, 40}, UpdateRule::delta, Decay::head, true, device));
    check_against_recurrence(Case({1, 530, 2, 17, 9}, UpdateRule::delta, Decay::none, false, device));
  }
}

TEST_CASE("on tensor cores, gated_linear_attention and its gradients differ by what TF32 rounds") {
  if (!why_unavailable(Device::cuda).empty()) return;
  const auto compare = [](const Case& x) {
    if (x.q.device() == Device::cpu || !x.lengths) return;
    std::vector<Tensor> inputs = x.inputs();
    for (Tensor& input : inputs) input = clone(input).set_wants_grad();
    std::vector<std::vector<double>> results[2];
    for (const bool rounds : {false, true}) {
      const auto set = [&] { set_precision(rounds ? Precision::tf32 : Precision::f32, Device::cuda); };
      Tape tape;
      set();
      const auto [y, state] = x(inputs);
      set_precision(Precision::f32);
      const Tensor loss = add(sum(square(y)), sum(square(state)));
      set();
      const Gradients g = tape.backward(loss);
      set_precision(Precision::f32);
      results[rounds] = {doubles(y), doubles(state)};
      for (const Tensor& input : inputs) results[rounds].push_back(doubles(g.of(input)));
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      CAPTURE(i);
      CHECK_LE(distance(results[1][i], results[0][i]), 2e-3);
    }
    CHECK_GT(distance(results[1][0], results[0][0]), 0);
  };
  for_all_cases({{1, 40, 1, 33, 20}}, compare);
  // Where nothing decays, errors of the state may not add up.
  compare(Case({1, 264, 1, 16, 16}, UpdateRule::delta, Decay::none, true, Device::cuda));
}

TEST_CASE("gated_linear_attention: four-point gradients, also of the state alone and of y alone") {
  for_all_cases({{2, 4, 1, 3, 2}}, [](const Case& x) {
    check_gradients([&](const std::vector<Tensor>& in) { return x(in).y; }, x.inputs());
    check_gradients(
        [&](const std::vector<Tensor>& in) {
          const auto [y, state] = x(in);
          return add(sum(y), sum(square(state)));
        },
        x.inputs());
  });
}

TEST_CASE("gated_linear_attention: a gradient does not depend on which others are wanted") {
  for (const Device device : devices())
    for (const UpdateRule rule : {UpdateRule::additive, UpdateRule::delta})
      for (const Decay decay : {Decay::head, Decay::channel}) {
        const Case x({2, 9, 1, 3, 5}, rule, decay, true, device);
        const auto gradients = [&](const std::vector<bool>& wanted) {
          std::vector<Tensor> inputs = x.inputs();
          for (size_t i = 0; i < inputs.size(); ++i) {
            inputs[i] = clone(inputs[i]);
            if (wanted[i]) inputs[i].set_wants_grad();
          }
          Tape tape;
          const GatedLinearResult result = x(inputs);
          const Gradients g = tape.backward(add(sum(square(result.y)), sum(square(result.state))));
          std::vector<std::vector<float>> all;
          for (size_t i = 0; i < inputs.size(); ++i)
            all.push_back(wanted[i] ? g.of(inputs[i]).to_vector() : std::vector<float>());
          return all;
        };
        const auto all = gradients(std::vector<bool>(6, true));
        for (size_t only = 0; only < 6; ++only) {
          CAPTURE(only);
          std::vector<bool> wanted(6);
          wanted[only] = true;
          CHECK(gradients(wanted)[only] == all[only]);
        }
      }
}

TEST_CASE("gated_linear_attention: additive without gates is the numerator of linear attention") {
  for (const Device device : devices()) {
    const Case x({2, 37, 2, 8, 8}, UpdateRule::additive, Decay::none, false, device);
    check_close(gated_linear_attention(x.q, x.k, x.v).y, doubles(causal_product(x.q, x.k, x.v)), reduction);
  }
}

TEST_CASE("gated_linear_attention: segments and single positions give what the whole sequence gives") {
  for_all_cases({{2, 11, 2, 5, 6}}, [](const Case& x) {
    if (x.lengths) return;  // with them, segments have lengths of their own
    const auto [whole, last] = x(x.inputs());
    const Gates gates{x.rule, x.beta, x.decay};
    const auto part = [](const Tensor& t, int64_t first, int64_t count) {
      return t ? slice(t, 1, first, count) : Tensor();
    };
    std::vector<Tensor> ys;
    Tensor state, stepped = Tensor::full(last.shape(), 0, x.q.device());
    for (int64_t first = 0; first < x.l; first += 4) {
      const int64_t count = std::min<int64_t>(4, x.l - first);
      const auto own = [&](const Tensor& t) { return part(t, first, count); };
      const auto result =
          gated_linear_attention(own(x.q), own(x.k), own(x.v), {x.rule, own(x.beta), own(x.decay)}, state);
      ys.push_back(result.y);
      state = result.state;
    }
    check_close(concat(ys, 1), doubles(whole), rounding);
    check_close(state, doubles(last), rounding);
    for (int64_t t = 0; t < x.l; ++t) {
      const auto own = [&](const Tensor& all) { return part(all, t, 1); };
      const Tensor y =
          gated_linear_attention_step(own(x.q), own(x.k), own(x.v), {x.rule, own(x.beta), own(x.decay)}, stepped);
      check_close(y, doubles(own(whole)), rounding);
    }
    check_close(stepped, doubles(last), rounding);
  });
}

TEST_CASE("gated_linear_attention: whatever stands in padding changes nothing and gets no gradient") {
  for_all_cases({{3, 9, 2, 3, 5}}, [](const Case& x) {
    if (!x.lengths) return;
    const std::vector<int32_t> lengths = x.lengths.to_vector();
    std::vector<std::vector<float>> results[2];
    for (const bool has_nan : {false, true}) {
      std::vector<Tensor> inputs = x.inputs();
      for (Tensor& input : inputs) {
        std::vector<float> numbers = input.to_vector();
        const bool is_state = input.shape() == x.state.shape(), is_query = &input == inputs.data();
        const size_t row = numbers.size() / static_cast<size_t>(x.b * x.l);  // of a position
        for (size_t i = 0; has_nan && !is_state && !is_query && i < numbers.size(); ++i)
          if (static_cast<int64_t>(i / row) % x.l >= lengths[i / row / static_cast<size_t>(x.l)]) numbers[i] = NAN;
        input = Tensor(input.shape(), numbers, input.device()).set_wants_grad();
      }
      Tape tape;
      const auto [y, state] = x(inputs);
      results[has_nan] = {y.to_vector(), state.to_vector()};
      const Gradients g = tape.backward(add(sum(square(y)), sum(square(state))));
      for (const Tensor& input : inputs) results[has_nan].push_back(g.of(input).to_vector());
    }
    CHECK(results[0] == results[1]);
  });
}

TEST_CASE("gated_linear_attention: the same bytes with any number of threads") {
  const Case x({3, 130, 3, 32, 32}, UpdateRule::delta, Decay::channel, true, Device::cpu);
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 5}) {
    const OmpThreads count(threads);
    std::vector<Tensor> inputs = x.inputs();
    for (Tensor& input : inputs) input = clone(input).set_wants_grad();
    Tape tape;
    const Tensor y = x(inputs).y;
    std::vector<std::vector<float>> results{y.to_vector()};
    const Gradients g = tape.backward(sum(square(y)));
    for (const Tensor& input : inputs) results.push_back(g.of(input).to_vector());
    if (first.empty()) first = results;
    CHECK(results == first);
  }
}

TEST_CASE("gated_linear_attention: memory beyond inputs, output and gradients does not grow with L on the CPU") {
  const auto extra = [](int64_t l) {
    Case x({1, l, 8, 16, 16}, UpdateRule::delta, Decay::head, false, Device::cpu);
    std::vector<Tensor> inputs = x.inputs();
    for (Tensor& input : inputs) input.set_wants_grad();
    const int64_t before = memory_use(Device::cpu).live, bytes = (5 * 16 + 1) * 8 * l * 4;  // y, dy, dq, dk, dv, dg
    reset_peak(Device::cpu);
    Tape tape;
    const Tensor y = x(inputs).y;
    const Gradients gradients = tape.backward(sum(y));
    return memory_use(Device::cpu).peak - before - bytes;
  };
  CHECK_EQ(extra(4096), extra(512));
}

TEST_CASE("gated_linear_attention: without positions the state stays as it is") {
  for (const Device device : devices()) {
    const Tensor none(Shape{2, 0, 1, 3}, device), state = random_tensor(Shape{2, 1, 3, 3}, 1, -1, 1, device);
    const auto [y, last] = gated_linear_attention(none, none, none, {.rule = UpdateRule::delta}, state);
    CHECK_EQ(y.shape(), none.shape());
    CHECK(last.to_vector() == state.to_vector());
  }
}

TEST_CASE("gated_linear_attention: tensors that do not fit are refused by name") {
  const Tensor q(Shape{2, 3, 2, 4}), v(Shape{2, 3, 2, 5});
  const auto with = [&](const Gates& gates, const Tensor& state = {}) {
    return [=] { gated_linear_attention(q, q, v, gates, state); };
  };
  check_fails(with({.beta = Tensor(Shape{2, 3})}), "gated_linear_attention: beta [2,3] is not [2,3,2]");
  check_fails(with({.decay = Tensor(Shape{2, 3, 4})}),
              "gated_linear_attention: the decay [2,3,4] is neither [2,3,2] nor [2,3,2,4]");
  check_fails(with({}, Tensor(Shape{2, 2, 4, 4})), "gated_linear_attention: the state [2,2,4,4] is not [2,2,4,5]");
  for (const Device device : devices()) {
    const Tensor wide(Shape{1, 1, 1, 513}, device);
    if (device == Device::cuda)
      check_fails([&] { gated_linear_attention(wide, wide, wide); }, "on CUDA, heads are at most 512 wide");
    else
      CHECK_NOTHROW(gated_linear_attention(wide, wide, wide));
  }
  Tensor state;
  check_fails([&] { gated_linear_attention_step(q, q, v, {}, state); }, "q [2,3,2,4] is not [B,1,H,E]");
  const Tensor one(Shape{2, 1, 2, 4});
  check_fails([&] { gated_linear_attention_step(one, one, one, {}, state); }, "the state is empty");
}
