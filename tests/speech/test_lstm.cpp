#include "tests/check.h"

#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/speech/lstm.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Problem {
  int64_t directions, batch, frames, width;
  std::vector<Tensor> gates, w;  // of each direction
  LstmState initial;
  std::vector<int32_t> lengths;
  Device device;

  Problem(int64_t d, int64_t b, int64_t t, int64_t h, Device where)
      : directions(d), batch(b), frames(t), width(h), device(where) {
    for (int64_t i = 0; i < d; ++i) {
      const auto seed = static_cast<uint64_t>(10 * i);
      gates.push_back(random_tensor(Shape{b, t, 4 * h}, seed + 1, -1.5, 1.5, where));
      w.push_back(random_tensor(Shape{4 * h, h}, seed + 2, -0.6f, 0.6f, where));
    }
    initial = {random_tensor(Shape{d, b, h}, 3, -1, 1, where), random_tensor(Shape{d, b, h}, 4, -1, 1, where)};
    for (int64_t i = 0; i < b; ++i) lengths.push_back(static_cast<int32_t>((t + 5 * i) % (t + 1)));
  }
  Indices all_lengths() const { return Indices(Shape{batch}, lengths, device); }
};

struct Expected {
  std::vector<double> y, h, c;
};

// One number after the other, as the equations say.
Expected definition(const Problem& p, bool has_lengths, bool has_state) {
  const int64_t n = p.width;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  Expected result{std::vector<double>(static_cast<size_t>(p.batch * p.frames * p.directions * n)), {}, {}};
  const std::vector<double> h0 = doubles(p.initial.h), c0 = doubles(p.initial.c);
  for (int64_t d = 0; d < p.directions; ++d) {
    const std::vector<double> z = doubles(p.gates[static_cast<size_t>(d)]), w = doubles(p.w[static_cast<size_t>(d)]);
    for (int64_t b = 0; b < p.batch; ++b) {
      const int64_t length = has_lengths ? p.lengths[static_cast<size_t>(b)] : p.frames;
      std::vector<double> h(static_cast<size_t>(n)), c = h;
      for (size_t j = 0; has_state && j < h.size(); ++j) {
        h[j] = h0[static_cast<size_t>((d * p.batch + b) * n) + j];
        c[j] = c0[static_cast<size_t>((d * p.batch + b) * n) + j];
      }
      for (int64_t step = 0; step < length; ++step) {
        const int64_t t = d == 0 ? step : length - 1 - step;
        std::vector<double> sums(static_cast<size_t>(4 * n));
        for (int64_t r = 0; r < 4 * n; ++r) {
          double& sum = sums[static_cast<size_t>(r)];
          sum = z[static_cast<size_t>((b * p.frames + t) * 4 * n + r)];
          for (int64_t j = 0; j < n; ++j) sum += w[static_cast<size_t>(r * n + j)] * h[static_cast<size_t>(j)];
        }
        for (int64_t j = 0; j < n; ++j) {
          const auto gate = [&](int64_t of) { return sums[static_cast<size_t>(of * n + j)]; };
          double& cell = c[static_cast<size_t>(j)];
          cell = sigmoid(gate(1)) * cell + sigmoid(gate(0)) * std::tanh(gate(2));
          h[static_cast<size_t>(j)] = sigmoid(gate(3)) * std::tanh(cell);
          result.y[static_cast<size_t>(((b * p.frames + t) * p.directions + d) * n + j)] = h[static_cast<size_t>(j)];
        }
      }
      result.h.insert(result.h.end(), h.begin(), h.end());
      result.c.insert(result.c.end(), c.begin(), c.end());
    }
  }
  return result;
}

}  // namespace

TEST_CASE("lstm: the definition, in one direction and both, with lengths and states") {
  for (const Device device : devices())
    for (const int64_t directions : {1, 2})
      for (const auto& [batch, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {17, 20}, {2, 33}, {2, 0}}) {
        const Problem p(directions, batch, 6, width, device);
        for (const bool has_lengths : {false, true})
          for (const bool has_state : {false, true}) {
            CAPTURE(directions);
            CAPTURE(has_lengths);
            CAPTURE(has_state);
            const auto [y, last] =
                lstm(p.gates, p.w, has_lengths ? p.all_lengths() : Indices(), has_state ? p.initial : LstmState());
            const Expected expected = definition(p, has_lengths, has_state);
            check_close(y, expected.y, reduction);
            check_close(last.h, expected.h, reduction);
            check_close(last.c, expected.c, reduction);
          }
      }
}

TEST_CASE("lstm: gradients of gates, weights and states, by way of y and of the last state") {
  for (const Device device : devices())
    for (const int64_t directions : {1, 2}) {
      const Problem p(directions, 3, 6, 5, device);  // lengths 6, 4 and 2
      const auto count = static_cast<size_t>(directions);
      std::vector<Tensor> inputs = p.gates;
      inputs.insert(inputs.end(), p.w.begin(), p.w.end());
      inputs.push_back(p.initial.h);
      inputs.push_back(p.initial.c);
      for (const int part : {0, 1, 2})
        for (const bool has_lengths : {false, true}) {
          CAPTURE(part);
          CAPTURE(has_lengths);
          const auto f = [&](const std::vector<Tensor>& in) {
            const auto at = [&](size_t i) { return in.begin() + static_cast<int64_t>(i); };
            const LstmResult result =
                lstm({at(0), at(count)}, {at(count), at(2 * count)}, has_lengths ? p.all_lengths() : Indices(),
                     {in[2 * count], in[2 * count + 1]});
            return part == 0 ? result.y : part == 1 ? result.state.h : result.state.c;
          };
          check_gradients(f, inputs);
        }
      const auto without_state = [&](const std::vector<Tensor>& in) {
        const auto middle = in.begin() + static_cast<int64_t>(count);
        return lstm({in.begin(), middle}, {middle, in.end()}, p.all_lengths()).y;
      };
      inputs.resize(2 * count);
      check_gradients(without_state, inputs);
    }
}

TEST_CASE("lstm: padding is zero and changes nothing, nor do gates there get gradients") {
  for (const Device device : devices()) {
    const Problem p(2, 4, 7, 6, device);
    std::vector<Tensor> gates = p.gates;
    for (Tensor& of : gates) {
      std::vector<float> values = of.to_vector();
      for (int64_t b = 0; b < p.batch; ++b)
        for (int64_t t = p.lengths[static_cast<size_t>(b)]; t < p.frames; ++t)
          std::fill_n(values.begin() + (b * p.frames + t) * 4 * p.width, 4 * p.width, NAN);
      of = Tensor(of.shape(), values, device);
      of.set_wants_grad();
    }
    Tape tape;
    const Tensor y = lstm(gates, p.w, p.all_lengths()).y;
    check_close(y, definition(p, true, false).y, reduction);
    const Gradients gradients = tape.backward(sum(y));
    for (const Tensor& of : gates) {
      const std::vector<float> d = gradients.of(of).to_vector();
      for (int64_t b = 0; b < p.batch; ++b)
        for (int64_t t = 0; t < p.frames; ++t)
          for (int64_t j = 0; j < 4 * p.width; ++j) {
            const float g = d[static_cast<size_t>((b * p.frames + t) * 4 * p.width + j)];
            CHECK((t < p.lengths[static_cast<size_t>(b)] ? std::isfinite(g) : g == 0));
          }
    }
  }
}

TEST_CASE("lstm: a sequence in two parts, the second from the state after the first") {
  for (const Device device : devices()) {
    const Problem p(1, 2, 6, 5, device);
    const std::vector<float> z = p.gates[0].to_vector();
    const auto part = [&](int64_t first, int64_t count) {
      std::vector<float> values;
      for (int64_t b = 0; b < p.batch; ++b) {
        const auto begin = z.begin() + (b * p.frames + first) * 4 * p.width;
        values.insert(values.end(), begin, begin + count * 4 * p.width);
      }
      return Tensor(Shape{p.batch, count, 4 * p.width}, values, device);
    };
    const LstmResult whole = lstm({p.gates[0]}, p.w), first = lstm({part(0, 4)}, p.w);
    const LstmResult second = lstm({part(4, 2)}, p.w, {}, first.state);
    check_close(second.state.h, doubles(whole.state.h), rounding);
    check_close(second.state.c, doubles(whole.state.c), rounding);
  }
}

TEST_CASE("lstm: the same bytes with any number of threads") {
  const Problem p(2, 40, 5, 24, Device::cpu);
  std::vector<std::vector<float>> seen;
  for (const int threads : {1, 2, 5}) {
    const OmpThreads own(threads);
    seen.push_back(lstm(p.gates, p.w, p.all_lengths(), p.initial).y.to_vector());
    CHECK(seen.back() == seen.front());
  }
}

TEST_CASE("lstm: results so large that stores are non-temporal are those of each sequence alone") {
  // Two sequences have gates of more than 2 MiB, from where on stores are non-temporal.
  constexpr int64_t frames = 700, width = 96;
  const Tensor w = random_tensor(Shape{4 * width, width}, 1, -0.1f, 0.1f);
  Tensor both = random_tensor(Shape{2, frames, 4 * width}, 2), one = clone(slice(both, 0, 1, 1));
  const auto results = [&](Tensor& gates) {
    gates.set_wants_grad();
    Tape tape;
    const Tensor y = lstm({gates}, {w}).y;
    return std::pair(y, tape.backward(sum(y)).of(gates));
  };
  const auto [y, dz] = results(both);
  const auto [y_one, dz_one] = results(one);
  check_close(slice(detach(y), 0, 1, 1), doubles(y_one), rounding);
  check_close(slice(dz, 0, 1, 1), doubles(dz_one), reduction);
}

TEST_CASE("lstm: impossible arguments") {
  const Tensor gates(Shape{2, 3, 8}), w(Shape{8, 2});
  check_fails([&] { lstm({}, {}); }, "lstm: 0 gates and 0 w");
  check_fails([&] { lstm({gates}, {w, w}); }, "lstm: 1 gates and 2 w");
  check_fails([&] { lstm({Tensor(Shape{2, 3, 6})}, {w}); }, "gates [2,3,6] are not [B,T,4H]");
  check_fails([&] { lstm({gates, Tensor(Shape{2, 4, 8})}, {w, w}); }, "gates [2,4,8] do not match [2,3,8]");
  check_fails([&] { lstm({gates}, {Tensor(Shape{2, 8})}); }, "w [2,8] does not match gates [2,3,8]");
  check_fails([&] { lstm({gates}, {w}, {}, {Tensor(Shape{1, 2, 2}), {}}); }, "h and c come together");
  check_fails([&] { lstm({gates}, {w}, {}, {Tensor(Shape{2, 2}), Tensor(Shape{2, 2})}); }, "is not [1,2,2]");
  check_fails([&] { lstm({gates}, {w}, Indices(Shape{2}, {3, 4})); }, "length 4 of sequence 1 is not in [0, 3]");
}
