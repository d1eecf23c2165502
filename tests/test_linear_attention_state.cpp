// Causal linear attention that carries a state: in parts of a sequence, and position by position.
#include "tests/linear_attention_definition.h"

#include "ops/elementwise.h"
#include "ops/linear_attention.h"

using namespace runnel;
using namespace runnel::test;

namespace {

AttentionState random_state(const Case& x) {  // Z is positive
  return {random_tensor(Shape{x.b, x.h, x.e, x.m}, 7, -2, 2, x.q.device()),
          random_tensor(Shape{x.b, x.h, x.e}, 8, 0.1f, 2, x.q.device())};
}

// The numbers of S in bf16, [B,H,E,M]: two in each float, the first in its lower half; where M is odd, the last is 0.
std::vector<double> unpacked(const AttentionState& state, int64_t m) {
  std::vector<double> numbers;
  const int64_t row = 2 * state.s.shape()[-1];
  int64_t i = 0;
  for (const float two : state.s.to_vector())
    for (const uint32_t upper : {std::bit_cast<uint32_t>(two) << 16, std::bit_cast<uint32_t>(two) & 0xffff0000u}) {
      const float number = std::bit_cast<float>(upper);
      if (i++ % row < m)
        numbers.push_back(number);
      else
        CHECK_EQ(number, 0);
    }
  return numbers;
}

}  // namespace

TEST_CASE("linear_attention_step: position by position equals the parallel form, for all maps") {
  for (const Device device : devices())
    for (const FeatureMap map : all_maps)
      for (const auto& [e, m] : {std::array<int64_t, 2>{5, 37}, {65, 132}, {300, 3}}) {
        CAPTURE(m);
        const Form x({1, 5, 5, 2, e, m}, true, map, false, device);
        const Tensor whole = x(x.q, x.k, x.v);
        AttentionState state;
        for (int64_t i = 0; i < x.l; ++i) {
          const auto at = [i](const Tensor& t) { return positions(t, i, i + 1); };
          check_close(linear_attention_step(at(x.q), at(x.k), at(x.v), state, map), doubles(at(whole)), reduction);
        }
      }
}

TEST_CASE("linear_attention_step with a state in bf16: S is rounded to the nearest after y has been computed") {
  constexpr double half_a_unit = 0x1p-8;  // of a number with 8 bits of mantissa
  for (const Device device : devices())
    for (const auto& [e, m] : {std::array<int64_t, 2>{5, 37}, {32, 32}, {65, 132}, {300, 3}}) {
      CAPTURE(m);
      const Case x(1, 4, 2, e, m, device);
      AttentionState state{{}, {}, Precision::bf16};
      std::vector<double> s(static_cast<size_t>(x.h * e * m)), z(static_cast<size_t>(x.h * e));
      const std::vector<double> q = doubles(x.q), k = doubles(x.k), v = doubles(x.v);
      for (int64_t i = 0; i < x.l; ++i) {
        std::vector<double> y(static_cast<size_t>(x.h * m));
        for (int64_t head = 0; head < x.h; ++head) {
          double normaliser = normaliser_eps;
          for (int64_t r = 0; r < e; ++r) {
            const double query = phi(q[x.at(0, i, head, e, r)]), key = phi(k[x.at(0, i, head, e, r)]);
            normaliser += query * (z[static_cast<size_t>(head * e + r)] += key);
            for (int64_t c = 0; c < m; ++c)
              y[static_cast<size_t>(head * m + c)] +=
                  query * (s[static_cast<size_t>((head * e + r) * m + c)] += key * v[x.at(0, i, head, m, c)]);
          }
          for (int64_t c = 0; c < m; ++c) y[static_cast<size_t>(head * m + c)] /= normaliser;
        }
        const auto at = [i](const Tensor& t) { return positions(t, i, i + 1); };
        check_close(linear_attention_step(at(x.q), at(x.k), at(x.v), state), y, reduction);
        check_close(state.z, z, reduction);
        const std::vector<double> stored = unpacked(state, m);
        REQUIRE_EQ(stored.size(), s.size());
        for (size_t n = 0; n < s.size(); ++n) CHECK_LE(std::abs(stored[n] - s[n]), half_a_unit * std::abs(s[n]) + 1e-5);
        s = stored;  // the next position goes on from these
      }
      CHECK(state.s.shape() == Shape{1, 2, e, (m + 1) / 2});
    }
  check_fails([&] { zero_state(Shape{1, 2, 3, 4}, Precision::int8, Device::cpu); }, "S is kept in f32 or bf16");
  const Tensor one = random_tensor(Shape{1, 1, 2, 1}, 1);
  check_fails(
      [&] {
        linear_attention(one, one, one, zero_state(Shape{1, 2, 1, 1}, Precision::bf16, Device::cpu));
      },
      "linear_attention: a state in bf16 is for linear_attention_step");
}

TEST_CASE("linear_attention: segments that carry the state have the results and gradients of the whole sequence") {
  for (const Device device : devices())
    for (const int64_t step : {1, 13, 32, 70}) {
      CAPTURE(step);
      Case x(2, 70, 2, 5, 7, device);
      const Tensor c = random_tensor(x.v.shape(), 4, -1, 1, device);
      AttentionState initial = random_state(x);
      for (Tensor* t : {&x.q, &x.k, &x.v, &initial.s, &initial.z}) t->set_wants_grad();
      const auto loss_of_state = [](const AttentionState& state) {
        return add(random_dot(state.s, 5), random_dot(state.z, 6));
      };

      Tape whole_tape;
      const LinearAttentionResult whole = linear_attention(x.q, x.k, x.v, initial);
      const Gradients expected = whole_tape.backward(add(weighted_sum(whole.y, c), loss_of_state(whole.state)));

      struct Segment {
        int64_t begin, end;
        Tensor q, k, v;
      };
      std::vector<Segment> segments;
      Tape tape;
      AttentionState state = initial;
      Tensor loss = Tensor::full(Shape{1, 1}, 0, device);
      for (int64_t begin = 0; begin < x.l; begin += step) {
        const int64_t end = std::min(begin + step, x.l);
        Segment s{begin, end, positions(x.q, begin, end), positions(x.k, begin, end), positions(x.v, begin, end)};
        for (Tensor* t : {&s.q, &s.k, &s.v}) t->set_wants_grad();
        const LinearAttentionResult part = linear_attention(s.q, s.k, s.v, state);
        check_close(part.y, doubles(positions(whole.y, begin, end)), reduction);
        loss = add(loss, weighted_sum(part.y, positions(c, begin, end)));
        state = part.state;
        segments.push_back(std::move(s));
      }
      check_close(state.s, doubles(whole.state.s), reduction);
      check_close(state.z, doubles(whole.state.z), reduction);
      const Gradients gradients = tape.backward(add(loss, loss_of_state(state)));
      for (const Segment& s : segments) {
        check_close(gradients.of(s.q), doubles(positions(expected.of(x.q), s.begin, s.end)), reduction);
        check_close(gradients.of(s.k), doubles(positions(expected.of(x.k), s.begin, s.end)), reduction);
        check_close(gradients.of(s.v), doubles(positions(expected.of(x.v), s.begin, s.end)), reduction);
      }
      check_close(gradients.of(initial.s), doubles(expected.of(initial.s)), reduction);
      check_close(gradients.of(initial.z), doubles(expected.of(initial.z)), reduction);
    }
}

TEST_CASE("linear_attention: parts that carry the state equal the definition, however each is cut into segments") {
  constexpr int64_t part = 200;
  for (const Device device : devices()) {
    const Form x({1, 3 * part, 3 * part, 1, 40, 36}, true, FeatureMap::elu_plus_one, false, device);
    const Tensor dy = random_tensor(x.v.shape(), 4, -1, 1, device);
    const Reference expected(x, doubles(dy));
    for (const int count :
         device == Device::cpu ? std::vector<int>{1, 2, 3, 8} : std::vector<int>{omp_get_max_threads()}) {
      CAPTURE(count);
      const OmpThreads threads(count);
      std::vector<std::array<Tensor, 4>> parts;  // q, k, v, y
      AttentionState state;
      Tape tape;
      Tensor loss;
      for (int64_t begin = 0; begin < x.l; begin += part) {
        std::array<Tensor, 4> in;
        for (size_t i = 0; i < 3; ++i)
          in[i] = positions(std::array{x.q, x.k, x.v}[i], begin, begin + part).set_wants_grad();
        const LinearAttentionResult result = linear_attention(in[0], in[1], in[2], state);
        in[3] = result.y;
        state = result.state;
        parts.push_back(in);
        const Tensor own = weighted_sum(result.y, positions(dy, begin, begin + part));
        loss = loss ? add(loss, own) : own;
      }
      const Gradients gradients = tape.backward(loss);
      for (int64_t n = 0; n < std::ssize(parts); ++n) {
        CAPTURE(n);
        const auto of_part = [n](const std::vector<double>& all) {
          const std::ptrdiff_t size = std::ssize(all) / 3;
          return std::vector<double>(all.begin() + n * size, all.begin() + (n + 1) * size);
        };
        const auto& [q, k, v, y] = parts[static_cast<size_t>(n)];
        check_close(y, of_part(expected.y), reduction);
        check_close(gradients.of(q), of_part(expected.dq), reduction);
        check_close(gradients.of(k), of_part(expected.dk), reduction);
        check_close(gradients.of(v), of_part(expected.dv), reduction);
      }
    }
  }
}

TEST_CASE("linear_attention with an empty initial state starts from zero") {
  for (const Device device : devices()) {
    const Case x(2, 40, 3, 5, 7, device);
    CHECK(linear_attention(x.q, x.k, x.v, AttentionState{}).y.to_vector() ==
          linear_attention(x.q, x.k, x.v).to_vector());
  }
}

TEST_CASE("linear_attention: truncated backpropagation takes the state that a segment starts from as a constant") {
  for (const Device device : devices()) {
    Case x(2, 40, 1, 5, 7, device);
    for (Tensor* t : {&x.q, &x.k, &x.v}) t->set_wants_grad();
    AttentionState state;
    const auto train = [&](const AttentionState& initial) {
      Tape tape;
      auto [y, next] = linear_attention(x.q, x.k, x.v, initial);
      const Gradients gradients = tape.backward(random_dot(y, 4));
      state = {detach(next.s), detach(next.z)};
      return gradients;
    };
    train(state);
    const AttentionState first = state;
    const Gradients gradients = train(first), expected = train({clone(first.s), clone(first.z)});
    for (const Tensor* t : {&x.q, &x.k, &x.v}) CHECK(gradients.of(*t).to_vector() == expected.of(*t).to_vector());
    check_fails([&] { gradients.of(first.s); }, "the loss does not depend on this tensor");
  }
}

TEST_CASE(
    "linear_attention's gradients by four-point differences, with those of the initial and through the final state") {
  for (const Device device : devices())
    for (const auto& [b, l, h, e, m] : {std::array<int64_t, 5>{2, 5, 3, 4, 2}, {1, 1, 1, 3, 2}, {1, 70, 1, 3, 5}})
      for (const bool only_state : {false, true}) {
        CAPTURE(l);
        CAPTURE(only_state);
        const Case x(b, l, h, e, m, device);
        const AttentionState initial = random_state(x);
        check_gradients(
            [only_state](const auto& in) {
              const auto [y, final] = linear_attention(in[0], in[1], in[2], AttentionState{in[3], in[4]});
              // A query is not needed for the state: without y, its gradient is 0.
              const Tensor of_y = only_state ? scale(random_dot(in[0], 5), 1e-3f) : random_dot(y, 5);
              return add(of_y, add(random_dot(final.s, 6), random_dot(final.z, 7)));
            },
            {off_zero(x.q), off_zero(x.k), x.v, initial.s, initial.z});
      }
}

TEST_CASE("linear_attention's gradients where the loss depends on S alone of the final state, or on Z alone") {
  for (const Device device : devices())
    for (const bool only_s : {false, true}) {
      CAPTURE(only_s);
      const Case x(1, 40, 2, 3, 5, device);
      check_gradients(
          [only_s](const auto& in) {
            const auto [y, final] = linear_attention(in[0], in[1], in[2], AttentionState{});
            return add(random_dot(y, 5), only_s ? random_dot(final.s, 6) : random_dot(final.z, 7));
          },
          {off_zero(x.q), off_zero(x.k), x.v});
    }
}
