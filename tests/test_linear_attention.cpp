#include "ops/elementwise.h"
#include "ops/linear_attention.h"
#include "ops/numerics.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/linear_attention_definition.h"
#include "tests/memory_limit.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// The same from the parts that Algorithm 1 leaves to autodiff: causal_product, its normaliser as one more column of v.
Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v_and_one) {
  return causal_product(elu_plus_one(q), elu_plus_one(k), v_and_one);
}

#if RUNNEL_WITH_THREAD_SANITIZER
constexpr int64_t long_sequence = 500;  // the definition takes minutes for more
#else
constexpr int64_t long_sequence = 5000;
#endif
const std::vector<std::array<int64_t, 5>> shapes = {{1, 1, 1, 1, 1},
                                                    {2, 31, 3, 5, 7},
                                                    {1, 65, 2, 33, 3},
                                                    {3, 33, 1, 1, 31},
                                                    {1, 130, 1, 32, 32},
                                                    {2, 100, 2, 16, 48},
                                                    {5, 3, 7, 65, 64},
                                                    {1, 1000, 1, 17, 9},
                                                    {2, 64, 4, 32, 32},
                                                    {1, 40, 3, 256, 200},
                                                    {1, long_sequence, 1, 24, 32}};

void for_all_forms(const std::vector<std::array<int64_t, 6>>& sizes, const std::vector<FeatureMap>& maps,
                   const std::function<void(const Form&)>& f) {
  for (const Device device : devices())
    for (const auto& shape : sizes)
      for (const bool causal : {false, true})
        for (const FeatureMap map : maps)
          for (const bool padded : {false, true}) {
            CAPTURE(shape[0]);
            CAPTURE(shape[1]);
            CAPTURE(shape[4]);
            CAPTURE(causal);
            CAPTURE(static_cast<int>(map));
            CAPTURE(padded);
            f(Form(shape, causal, map, padded, device));
          }
}

struct Results {
  Tensor y, dq, dk, dv;
  Results(const Form& x, const Tensor& dy = {}) {  // without dy, of the sum of y
    Tensor q = x.q, k = x.k, v = x.v;
    for (Tensor* t : {&q, &k, &v}) t->set_wants_grad();
    Tape tape;
    y = x(q, k, v);
    const Gradients gradients = tape.backward(dy.size() ? weighted_sum(y, dy) : sum(y));
    dq = gradients.of(q), dk = gradients.of(k), dv = gradients.of(v);
  }
};

// B, L, S, H, E, M
const std::vector<std::array<int64_t, 6>> small_forms = {{1, 1, 1, 1, 1, 1}, {3, 31, 33, 2, 5, 7}};
const std::vector<std::array<int64_t, 6>> forms = {{1, 65, 3, 2, 33, 3},
                                                   {3, 33, 100, 1, 1, 31},
                                                   {2, 40, 64, 1, 32, 32},
                                                   {1, 130, 97, 1, 70, 48},
                                                   {1, 40, 50, 1, 70, 66}};

}  // namespace

TEST_CASE("linear attention and its gradients equal their definitions, for all maps and forms") {
  const auto check_form = [](const Form& x) {
    const Tensor dy = random_tensor(Shape{x.b, x.l, x.h, x.m}, 4, -1, 1, x.q.device());
    const Results results(x, dy);
    const Reference expected(x, doubles(dy));
    check_close(results.y, expected.y, reduction);
    check_close(results.dq, expected.dq, reduction);
    check_close(results.dk, expected.dk, reduction);
    check_close(results.dv, expected.dv, reduction);
  };
  for_all_forms(small_forms, all_maps, check_form);
  for_all_forms(forms, {FeatureMap::elu_plus_one}, check_form);
}

TEST_CASE("linear attention: the slope of relu and of identity is 0 at 0, that of elu + 1 is 1") {
  for_all_forms({{1, 5, 5, 1, 3, 2}}, all_maps, [](Form x) {
    x.q = Tensor::full(x.q.shape(), 0, x.q.device());
    std::vector<float> k = x.k.to_vector();
    k[0] = k[4] = 0;
    x.k = Tensor(x.k.shape(), k, x.k.device());
    const Tensor dy = random_tensor(x.v.shape(), 4, -1, 1, x.q.device());
    const Results results(x, dy);
    const Reference expected(x, doubles(dy));
    check_close(results.dq, expected.dq, reduction);
    check_close(results.dk, expected.dk, reduction);
  });
}

TEST_CASE("linear attention's gradients by four-point differences, for all maps and forms") {
  for_all_forms({{2, 4, 3, 2, 3, 2}}, all_maps, [](const Form& x) {
    if (x.q.device() == Device::cuda && cuda_is_emulated()) return;  // slow, and the definitions have been looked at
    check_gradients([&x](const auto& in) { return x(in[0], in[1], in[2]); }, {x.q, x.k, x.v});
  });
}

TEST_CASE("whatever a key is that nobody sees, its gradient is 0, and a query that sees none gets zeros") {
  for_all_forms({{3, 40, 35, 1, 3, 33}}, all_maps, [](Form x) {
    if (!x.lengths) return;
    for (Tensor* t : {&x.k, &x.v}) {
      auto values = t->to_vector();
      const int64_t row = t->shape()[2] * t->shape()[3];
      for (int64_t n = 0; n < x.b; ++n)
        std::fill(values.begin() + (n * x.s + x.keys(n)) * row, values.begin() + (n + 1) * x.s * row, NAN);
      *t = Tensor(t->shape(), values, t->device());
    }
    const Results results(x, Tensor::full(Shape{x.b, x.l, x.h, x.m}, 1, x.q.device()));
    for (const Tensor* t : {&results.y, &results.dq, &results.dk, &results.dv}) {
      const auto values = t->to_vector();
      CHECK(std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }));
    }
    for (int64_t n = 0; n < x.b; ++n) {
      const auto all_zero = [](const Tensor& t, int64_t first_row, int64_t end_row) {
        const auto values = t.to_vector();
        const int64_t row = t.shape()[2] * t.shape()[3];
        return std::all_of(values.begin() + first_row * row, values.begin() + end_row * row,
                           [](float value) { return value == 0; });
      };
      CHECK(all_zero(results.dk, n * x.s + x.keys(n), (n + 1) * x.s));
      CHECK(all_zero(results.dv, n * x.s + x.keys(n), (n + 1) * x.s));
      if (x.keys(n) == 0) {
        CHECK(all_zero(results.y, n * x.l, (n + 1) * x.l));
        CHECK(all_zero(results.dq, n * x.l, (n + 1) * x.l));
      }
    }
  });
}

TEST_CASE("a query of the last position sees the same, causal or not") {
  for (const Device device : devices()) {
    const Case x(2, 70, 2, 5, 7, device);
    const Tensor last = positions(linear_attention(x.q, x.k, x.v), x.l - 1, x.l);
    check_close(linear_attention(positions(x.q, x.l - 1, x.l), x.k, x.v, {.causal = false}), doubles(last), reduction);
  }
}

TEST_CASE("non-causal linear_attention gives the same bytes with any number of threads") {
  const Form x({1, 300, 500, 1, 20, 12}, false, FeatureMap::elu_plus_one, true, Device::cpu);
  const Tensor dy = random_tensor(Shape{x.b, x.l, x.h, x.m}, 4);
  const Reference expected(x, doubles(dy));
  std::vector<float> y, dk;
  for (const int count : {1, 2, 3, 8}) {
    CAPTURE(count);
    const OmpThreads threads(count);
    const Results results(x, dy);
    check_close(results.y, expected.y, reduction);
    check_close(results.dk, expected.dk, reduction);
    if (count == 1) y = results.y.to_vector(), dk = results.dk.to_vector();
    CHECK(results.y.to_vector() == y);
    CHECK(results.dk.to_vector() == dk);
    CHECK(results.dq.to_vector() == Results(x, dy).dq.to_vector());
  }
}

TEST_CASE("non-causal linear_attention: memory beyond inputs, output and gradients does not grow with L or S") {
  for (const Device device : devices()) {
    const auto extra = [device](int64_t l, int64_t s) {
      Form x({1, l, s, 1, 16, 16}, false, FeatureMap::elu_plus_one, false, device);
      const int64_t before = memory_use(device).live;
      reset_peak(device);
      const Results results(x);
      return memory_use(device).peak - before - (3 * l + 2 * s) * 16 * static_cast<int64_t>(sizeof(float));
    };
    const int64_t at_512 = extra(512, 512);
    CHECK_EQ(extra(4096, 512), at_512);
    CHECK_EQ(extra(512, 4096), at_512);
  }
}

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
        return tape.backward(weighted_sum(y, cotangent));
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

TEST_CASE("linear_attention and its gradients are the same bytes with any number of threads") {
  for (const int64_t heads : {1, 3, 9}) {  // in eight, three and one segments
    Case x(1, 500, heads, 20, 12, Device::cpu);
    const auto expected = reference(x);
    x.q.set_wants_grad(), x.k.set_wants_grad(), x.v.set_wants_grad();
    const Tensor weight = random_tensor(Shape{x.v.size(), 1}, 4);
    std::vector<std::vector<float>> of_one;
    for (const int count : {1, 2, 3, 8}) {
      CAPTURE(heads);
      CAPTURE(count);
      const OmpThreads threads(count);
      Tape tape;
      const Tensor y = linear_attention(x.q, x.k, x.v);
      check_close(y, expected, reduction);
      const Gradients g = tape.backward(weighted_sum(y, weight));
      const std::vector<std::vector<float>> results{y.to_vector(), g.of(x.q).to_vector(), g.of(x.k).to_vector(),
                                                    g.of(x.v).to_vector()};
      if (of_one.empty()) of_one = results;
      CHECK(results == of_one);
    }
  }
}

TEST_CASE("linear_attention: results so large that stores are non-temporal are those of each sequence alone") {
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    const Shape keys{8, 2304, 8, 32};  // more than 16 MiB, from where on stores are non-temporal
    const Shape values = keys.with_last(causal ? 32 : 40);
    std::vector<Tensor> all{random_tensor(keys, 1), random_tensor(keys, 2), random_tensor(values, 3)}, one;
    const Tensor dy = random_tensor(Shape{values.size(), 1}, 4);
    for (const Tensor& x : all) one.push_back(clone(slice(x, 0, 5, 1)));
    const auto results = [&](std::vector<Tensor>& x, const Tensor& weight) {
      for (Tensor& t : x) t.set_wants_grad();
      Tape tape;
      const Tensor y = linear_attention(x[0], x[1], x[2], {.causal = causal});
      const Gradients g = tape.backward(weighted_sum(y, weight));
      return std::vector{y, g.of(x[0]), g.of(x[1]), g.of(x[2])};
    };
    const int64_t each = dy.size() / 8;
    const std::vector<Tensor> of_all = results(all, dy), of_one = results(one, slice(dy, 0, 5 * each, each));
    for (size_t i = 0; i < of_all.size(); ++i)
      CHECK(slice(detach(of_all[i]), 0, 5, 1).to_vector() == of_one[i].to_vector());
  }
}

TEST_CASE("linear_attention's memory beyond inputs, output and gradients does not grow with L") {
  for (const Device device : devices()) {
    const auto extra = [device](int64_t heads, int64_t l) {
      Case x(1, l, heads, 16, 16, device);
      x.q.set_wants_grad(), x.k.set_wants_grad(), x.v.set_wants_grad();
      const int64_t bytes = x.q.size() * static_cast<int64_t>(sizeof(float));
      const int64_t before = memory_use(device).live;
      reset_peak(device);
      Tape tape;
      Tensor y = linear_attention(x.q, x.k, x.v);
      const Gradients gradients = tape.backward(sum(y));
      return memory_use(device).peak - before - 5 * bytes;  // y, dy, dq, dk, dv
    };
    for (const int64_t heads : {1, 8}) {  // 1: segments of L in parallel; 8: heads
      const int64_t at_512 = extra(heads, 512);
      CHECK_EQ(extra(heads, 4096), at_512);
      if (device == Device::cpu || !cuda_is_emulated()) CHECK_EQ(extra(heads, 65536), at_512);  // that one is slow
    }
  }
}

TEST_CASE("on tensor cores, linear_attention and its gradients differ by what TF32 rounds") {
  if (!why_unavailable(Device::cuda).empty()) return;
  for (const auto& [b, l, h, e, m] : shapes) {
    if (l == long_sequence && cuda_is_emulated()) continue;  // which is slow
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
      const Tensor loss = weighted_sum(y, dy);
      set_precision(precision, Device::cuda);
      const Gradients g = tape.backward(loss);
      set_precision(Precision::f32);
      std::vector<std::vector<double>>& these = precision == Precision::f32 ? exact_results : results;
      these = {doubles(y), doubles(g.of(x.q)), doubles(g.of(x.k)), doubles(g.of(x.v))};
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
      "linear_attention: v [2,7,3,4] does not match k [2,8,3,5]");
  check_fails(
      [&] {
        linear_attention(q, random_tensor(Shape{2, 8, 3, 4}, 2), q);
      },
      "linear_attention: k [2,8,3,4] does not match q [2,8,3,5]");
  AttentionState state{Tensor::full(Shape{2, 3, 5, 4}, 0), Tensor::full(Shape{2, 3, 5}, 0)};
  const std::string words = ": the state, S [2,3,5,4] and Z [2,3,5], does not match q [2,";
  check_fails([&] { linear_attention(q, q, q, state); }, "linear_attention" + words);
  const Tensor q1 = random_tensor(Shape{2, 1, 3, 5}, 1);
  check_fails([&] { linear_attention_step(q1, q1, q1, state); }, "linear_attention_step" + words);
  check_fails([&] { linear_attention_step(q, q, q, state); }, "linear_attention_step: q [2,8,3,5] is not [B,1,H,E]");
  check_fails([&] { linear_attention(q, q, q, AttentionState{state.s, {}}); }, "linear_attention: the state");
  check_fails(
      [&] {
        linear_attention(q, q, q, {.lengths = Indices(Shape{3}, {1, 2, 3})});
      },
      "linear_attention: lengths [3] are not one number for each of 2 sequences");
}

TEST_CASE("linear_attention that is not causal names the shapes that do not match") {
  const auto tensor = [](Shape shape) { return Tensor::full(shape, 0); };
  const Tensor q = tensor({2, 8, 3, 5}), k = tensor({2, 6, 3, 5});
  const AttentionMask full{.causal = false};
  check_fails(
      [&] {
        linear_attention(tensor({2, 8, 15}), k, k, full);
      },
      "linear_attention: q [2,8,15] is not [B,L,H,E]");
  check_fails(
      [&] {
        linear_attention(q, tensor({2, 6, 3, 4}), k, full);
      },
      "linear_attention: k [2,6,3,4] does not match q [2,8,3,5]");
  check_fails(
      [&] {
        linear_attention(q, k, tensor({2, 7, 3, 5}), full);
      },
      "linear_attention: v [2,7,3,5] does not match k [2,6,3,5]");
  check_fails(
      [&] {
        linear_attention(q, k, k, {false, Indices(Shape{2}, {1, 7})});
      },
      "linear_attention: length 7 of sequence 1 is not in [0, 6]");
  check_fails([&] { linear_attention(q, k, k); },
              "linear_attention: q [2,8,3,5] and k [2,6,3,5] must have the same length to be causal");
}

TEST_CASE("linear_attention: running out of memory is an error, forward and backward") {
  const Tensor q = random_tensor(Shape{1, 2, 1, 1024}, 1).set_wants_grad();
  check_out_of_memory([&] { linear_attention(q, q, q); });
  Tape tape;
  const Tensor loss = sum(linear_attention(q, q, q));
  check_out_of_memory([&] { tape.backward(loss); });
}
