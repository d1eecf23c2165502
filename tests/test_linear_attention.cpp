#include <omp.h>

#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Case {
  int64_t b, l, h, e, m;
  Tensor q, k, v;
  Case(int64_t batch, int64_t length, int64_t heads, int64_t feature, int64_t value, Device device)
      : b(batch),
        l(length),
        h(heads),
        e(feature),
        m(value),
        q(random_tensor(Shape{b, l, h, e}, 1, -2, 2, device)),
        k(random_tensor(Shape{b, l, h, e}, 2, -2, 2, device)),
        v(random_tensor(Shape{b, l, h, m}, 3, -2, 2, device)) {}
  size_t at(int64_t n, int64_t i, int64_t head, int64_t width, int64_t c) const {
    return static_cast<size_t>(((n * l + i) * h + head) * width + c);
  }
};

double phi(double x) { return x > 0 ? x + 1 : std::exp(x); }

// The definition, O(L^2) in double: y_i = sum_{j<=i} (phi(q_i) . phi(k_j)) v_j / (sum_{j<=i} phi(q_i) . phi(k_j) + eps)
std::vector<double> reference(const Case& x) {
  auto q = doubles(x.q), k = doubles(x.k);
  const auto v = doubles(x.v);
  for (auto* features : {&q, &k})
    for (double& number : *features) number = phi(number);
  std::vector<double> y(static_cast<size_t>(x.v.size()), 0);
  for (int64_t n = 0; n < x.b; ++n)
    for (int64_t head = 0; head < x.h; ++head)
      for (int64_t i = 0; i < x.l; ++i) {
        double normaliser = normaliser_eps;
        for (int64_t j = 0; j <= i; ++j) {
          double dot = 0;
          for (int64_t c = 0; c < x.e; ++c) dot += q[x.at(n, i, head, x.e, c)] * k[x.at(n, j, head, x.e, c)];
          normaliser += dot;
          for (int64_t c = 0; c < x.m; ++c) y[x.at(n, i, head, x.m, c)] += dot * v[x.at(n, j, head, x.m, c)];
        }
        for (int64_t c = 0; c < x.m; ++c) y[x.at(n, i, head, x.m, c)] /= normaliser;
      }
  return y;
}

// [B,L,H,W] -> positions [begin, end)
Tensor positions(const Tensor& x, int64_t begin, int64_t end) {
  const Shape shape = x.shape();
  const std::vector<float> all = x.to_vector();
  const int64_t row = shape[2] * shape[3];
  std::vector<float> part;
  for (int64_t n = 0; n < shape[0]; ++n)
    part.insert(part.end(), all.begin() + (n * shape[1] + begin) * row, all.begin() + (n * shape[1] + end) * row);
  return Tensor(Shape{shape[0], end - begin, shape[2], shape[3]}, part, x.device());
}

AttentionState zero_state(const Case& x) {
  return {Tensor::full(Shape{x.b, x.h, x.e, x.m}, 0, x.q.device()),
          Tensor::full(Shape{x.b, x.h, x.e}, 0, x.q.device())};
}

// The same from the parts that Algorithm 1 leaves to autodiff: causal_product, its normaliser as one more column of v.
Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v_and_one) {
  return causal_product(elu_plus_one(q), elu_plus_one(k), v_and_one);
}

#if defined(__SANITIZE_THREAD__)
constexpr int64_t long_sequence = 500;  // the definition takes minutes for more
#else
constexpr int64_t long_sequence = 5000;
#endif
const std::vector<std::array<int64_t, 5>> shapes = {{1, 1, 1, 1, 1},      {2, 31, 3, 5, 7},    {1, 65, 2, 33, 3},
                                                    {3, 33, 1, 1, 31},    {1, 130, 1, 32, 32}, {2, 100, 2, 16, 48},
                                                    {5, 3, 7, 65, 64},    {1, 1000, 1, 17, 9}, {2, 64, 4, 32, 32},
                                                    {1, 40, 3, 256, 200}, {1, long_sequence, 1, 24, 32}};

}  // namespace

TEST_CASE("linear_attention equals its definition") {
  for (const Device device : devices())
    for (const auto& [b, l, h, e, m] : shapes) {
      CAPTURE(b);
      CAPTURE(l);
      CAPTURE(h);
      CAPTURE(e);
      CAPTURE(m);
      const Case x(b, l, h, e, m, device);
      check_close(linear_attention(x.q, x.k, x.v), reference(x), reduction);
    }
}

// Keys at -25 have features of 1e-11, queries as well.
TEST_CASE("linear_attention with exponentially small features looks as far as with large ones") {
  for (const Device device : devices()) {
    Case x(1, 40, 2, 8, 4, device);
    x.q = random_tensor(x.q.shape(), 1, -27, -24, device);
    x.k = random_tensor(x.k.shape(), 2, -27, -24, device);
    check_close(linear_attention(x.q, x.k, x.v), reference(x), reduction);
    check_gradients([](const auto& in) { return linear_attention(in[0], in[1], in[2]); }, {x.q, x.k, x.v});
  }
}

TEST_CASE("linear_attention's gradients by four-point differences") {
  for (const Device device : devices())
    for (const auto& [b, l, h, e, m] :
         {std::array<int64_t, 5>{2, 5, 3, 4, 2}, {1, 1, 1, 3, 2}, {1, 70, 1, 3, 5}, {1, 35, 3, 17, 4}}) {
      CAPTURE(l);
      CAPTURE(e);
      CAPTURE(m);
      Case x(b, l, h, e, m, device);
      // phi' jumps from 1 to 1 at 0, but phi'' does not exist there: keep off.
      const auto off_zero = [](const Tensor& t) {
        std::vector<float> values = t.to_vector();
        for (float& value : values) value += value < 0 ? -0.1f : 0.1f;
        return Tensor(t.shape(), values, t.device());
      };
      check_gradients([](const auto& in) { return linear_attention(in[0], in[1], in[2]); },
                      {off_zero(x.q), off_zero(x.k), x.v});
    }
}

TEST_CASE("linear_attention's gradients equal those of causal_product, elu_plus_one and a division by hand") {
  for (const Device device : devices())
    for (const auto& [b, l, h, e, m] : shapes) {
      CAPTURE(b);
      CAPTURE(l);
      CAPTURE(h);
      CAPTURE(e);
      CAPTURE(m);
      Case x(b, l, h, e, m, device);
      const Tensor c = random_tensor(x.v.shape(), 4, -1, 1, device);
      const auto gradients = [&](const Tensor& y, const Tensor& cotangent, Tape& tape) {
        return tape.backward(matmul(reshape(y, Shape{1, y.size()}), reshape(cotangent, Shape{y.size(), 1})));
      };
      x.q.set_wants_grad(), x.k.set_wants_grad(), x.v.set_wants_grad();
      std::vector<double> y, dq, dk, dv;
      {
        Tape tape;
        const Tensor out = linear_attention(x.q, x.k, x.v);
        y = doubles(out);
        const Gradients g = gradients(out, c, tape);
        dq = doubles(g.of(x.q)), dk = doubles(g.of(x.k)), dv = doubles(g.of(x.v));
      }
      // v with a column of ones; the cotangent of numerator and normaliser from y = numerator / (normaliser + eps).
      const int64_t rows = b * l * h;
      std::vector<float> v1(static_cast<size_t>(rows * (m + 1)), 1), c1(v1.size());
      const auto v = x.v.to_vector(), cotangent = c.to_vector();
      for (int64_t r = 0; r < rows; ++r) std::copy_n(v.begin() + r * m, m, v1.begin() + r * (m + 1));
      Tensor v_and_one(Shape{b, l, h, m + 1}, v1, device);
      const auto product = doubles(composed(x.q, x.k, v_and_one));
      for (int64_t r = 0; r < rows; ++r) {
        const double normaliser = product[static_cast<size_t>(r * (m + 1) + m)] + normaliser_eps;
        double dot = 0;
        for (int64_t j = 0; j < m; ++j) {
          const auto i = static_cast<size_t>(r * m + j);
          dot += cotangent[i] * y[i];
          c1[static_cast<size_t>(r * (m + 1) + j)] = static_cast<float>(cotangent[i] / normaliser);
        }
        c1[static_cast<size_t>(r * (m + 1) + m)] = static_cast<float>(-dot / normaliser);
      }
      v_and_one.set_wants_grad();
      Tape tape;
      const Tensor out = composed(x.q, x.k, v_and_one);
      const Gradients g = gradients(out, Tensor(out.shape(), c1, device), tape);
      const auto dv1 = doubles(g.of(v_and_one));
      std::vector<double> dv_composed;
      for (int64_t r = 0; r < rows; ++r)
        dv_composed.insert(dv_composed.end(), dv1.begin() + r * (m + 1), dv1.begin() + r * (m + 1) + m);
      CHECK_LE(distance(dq, doubles(g.of(x.q))), reduction);
      CHECK_LE(distance(dk, doubles(g.of(x.k))), reduction);
      CHECK_LE(distance(dv, dv_composed), reduction);
    }
}

TEST_CASE("parallel = chunked = recurrent: a carried state makes no difference") {
  for (const Device device : devices())
    for (const int64_t step : {1, 7, 32, 50}) {
      CAPTURE(step);
      const Case x(2, 100, 3, 5, 7, device);
      const Tensor whole = linear_attention(x.q, x.k, x.v);
      AttentionState state = zero_state(x);
      for (int64_t begin = 0; begin < x.l; begin += step) {
        const int64_t end = std::min(begin + step, x.l);
        const Tensor part = linear_attention(positions(x.q, begin, end), positions(x.k, begin, end),
                                             positions(x.v, begin, end), &state);
        check_close(part, doubles(positions(whole, begin, end)), reduction);
      }
    }
}

TEST_CASE("the gradient takes the state it starts from as a constant") {
  for (const Device device : devices()) {
    const Case x(2, 40, 1, 5, 7, device);
    AttentionState before = zero_state(x);
    linear_attention(positions(x.q, 0, 7), positions(x.k, 0, 7), positions(x.v, 0, 7), &before);
    check_gradients(
        [&](const auto& in) {
          AttentionState state{clone(before.s), clone(before.z)};
          return linear_attention(in[0], in[1], in[2], &state);
        },
        {random_tensor(Shape{2, 33, 1, 5}, 5, 0.1f, 2, device), random_tensor(Shape{2, 33, 1, 5}, 6, -2, -0.1f, device),
         positions(x.v, 7, 40)});
  }
}

TEST_CASE("the number of threads changes how a sequence is cut, not the result") {
  const Case x(1, 500, 1, 20, 12, Device::cpu);
  const int threads = omp_get_max_threads();
  const auto reference_values = reference(x);
  for (const int count : {1, 2, 3, 8}) {
    omp_set_num_threads(count);
    const Tensor y = linear_attention(x.q, x.k, x.v);
    omp_set_num_threads(threads);
    check_close(y, reference_values, reduction);
    CAPTURE(count);
  }
}

TEST_CASE("linear_attention's memory beyond inputs, output and gradients does not grow with L") {
  for (const Device device : devices()) {
    const auto extra = [device](int64_t heads, int64_t l) {
      Case x(1, l, heads, 16, 16, device);
      x.q.set_wants_grad(), x.k.set_wants_grad(), x.v.set_wants_grad();
      const Tensor one = Tensor::full(Shape{x.v.size(), 1}, 1, device);
      const int64_t bytes = x.q.size() * static_cast<int64_t>(sizeof(float));
      const int64_t before = memory_use(device).live;
      reset_peak(device);
      Tape tape;
      Tensor y = linear_attention(x.q, x.k, x.v);
      const Gradients gradients = tape.backward(matmul(reshape(y, Shape{1, y.size()}), one));
      return memory_use(device).peak - before - 5 * bytes;  // y, dy, dq, dk, dv
    };
    for (const int64_t heads : {1, 8}) {  // 1: segments of L in parallel; 8: heads
      const int64_t at_512 = extra(heads, 512);
      CHECK_EQ(extra(heads, 4096), at_512);
      if (device == Device::cpu || !cuda_is_stand_in()) CHECK_EQ(extra(heads, 65536), at_512);  // that one is slow
    }
  }
}

TEST_CASE("on tensor cores, linear_attention and its gradients differ by what TF32 rounds") {
  if (!why_unavailable(Device::cuda).empty()) return;
  for (const auto& [b, l, h, e, m] : shapes) {
    CAPTURE(l);
    CAPTURE(e);
    CAPTURE(m);
    Case x(b, l, h, e, m, Device::cuda);
    x.q.set_wants_grad(), x.k.set_wants_grad(), x.v.set_wants_grad();
    const Tensor dy = random_tensor(Shape{x.v.size(), 1}, 4, -1, 1, Device::cuda);
    std::vector<std::vector<double>> exact_results, results;
    for (const Precision precision : {Precision::f32, Precision::tf32}) {
      Tape tape;
      set_precision(precision, Device::cuda);
      const Tensor y = linear_attention(x.q, x.k, x.v);
      set_precision(Precision::f32);
      const Tensor loss = matmul(reshape(y, Shape{1, y.size()}), dy);
      set_precision(precision, Device::cuda);
      const Gradients g = tape.backward(loss);
      set_precision(Precision::f32);
      (precision == Precision::f32 ? exact_results : results) = {doubles(y), doubles(g.of(x.q)), doubles(g.of(x.k)),
                                                                 doubles(g.of(x.v))};
    }
    for (size_t i = 0; i < results.size(); ++i) CHECK_LE(distance(results[i], exact_results[i]), 5e-3);
  }
}

TEST_CASE("linear_attention names the shapes that do not match") {
  const Tensor q = random_tensor(Shape{2, 8, 3, 5}, 1);
  check_fails(
      [&] {
        linear_attention(q, q, random_tensor(Shape{2, 7, 3, 4}, 2));
      },
      "linear_attention: v [2,7,3,4] does not match q [2,8,3,5]");
  check_fails(
      [&] {
        linear_attention(q, random_tensor(Shape{2, 8, 3, 4}, 2), q);
      },
      "linear_attention: k [2,8,3,4] does not match q [2,8,3,5]");
  AttentionState state{Tensor::full(Shape{2, 3, 5, 4}, 0), Tensor::full(Shape{2, 3, 5}, 0)};
  check_fails([&] { linear_attention(q, q, q, &state); }, "linear_attention: the state does not match");
}
