#include <limits>

#include "ops/lra/attention.h"
#include "ops/reductions.h"
#include "ops/softmax_attention.h"
#include "tests/check.h"
#include "tests/memory_limit.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Case {
  int64_t b, l, s, h, e, m, rows, columns;  // e = 0: without q and k
  bool shared;
  Tensor q, k, v, bias;
  Indices lengths;  // or empty
  Case(const std::array<int64_t, 8>& sizes, bool is_shared, bool padded, Device device)
      : b(sizes[0]),
        l(sizes[1]),
        s(sizes[2]),
        h(sizes[3]),
        e(sizes[4]),
        m(sizes[5]),
        rows(l + sizes[6]),
        columns(s + sizes[7]),
        shared(is_shared),
        q(e ? random_tensor(Shape{b, l, h, e}, 1, -2, 2, device) : Tensor()),
        k(e ? random_tensor(Shape{b, s, h, e}, 2, -2, 2, device) : Tensor()),
        v(random_tensor(Shape{b, s, h, m}, 3, -2, 2, device)),
        bias(random_tensor(shared ? Shape{h, rows, columns} : Shape{b, h, rows, columns}, 4, -2, 2, device)) {
    if (!padded) return;
    std::vector<int32_t> some;  // none, all, and what is between
    for (int64_t n = 0; n < b; ++n) some.push_back(static_cast<int32_t>(n == 0 ? 0 : n == 1 ? s : s - s / (n + 1)));
    lengths = Indices(Shape{b}, some, device);
  }
  std::vector<Tensor> inputs() const { return e ? std::vector{q, k, v, bias} : std::vector{v, bias}; }
  Tensor run(const std::vector<Tensor>& in) const {
    const AttentionMask mask{false, lengths};
    return e ? biased_softmax_attention(in[0], in[1], in[2], in[3], mask)
             : biased_softmax_attention({}, {}, in[0], in[1], mask);
  }
};

// By the definition, in double: y, and the gradients of the inputs for the cotangent dy.
struct Reference {
  std::vector<double> y, dq, dk, dv, dbias;
  Reference(const Case& x, const std::vector<double>& dy)
      : y(dy.size(), 0),
        dq(static_cast<size_t>(x.q.size()), 0),
        dk(static_cast<size_t>(x.k.size()), 0),
        dv(static_cast<size_t>(x.v.size()), 0),
        dbias(static_cast<size_t>(x.bias.size()), 0) {
    const auto q = doubles(x.q), k = doubles(x.k), v = doubles(x.v), bias = doubles(x.bias);
    const double scale = x.e ? 1 / std::sqrt(static_cast<double>(x.e)) : 0;
    for (int64_t n = 0; n < x.b; ++n)
      for (int64_t head = 0; head < x.h; ++head)
        for (int64_t i = 0; i < x.l; ++i) {
          const auto row = [&](int64_t t, int64_t length, int64_t width) {
            return static_cast<size_t>(((n * length + t) * x.h + head) * width);
          };
          const size_t qi = row(i, x.l, x.e), yi = row(i, x.l, x.m);
          const auto bi = static_cast<size_t>((((x.shared ? 0 : n) * x.h + head) * x.rows + i) * x.columns);
          const auto keys = static_cast<size_t>(x.lengths ? x.lengths.to_vector()[static_cast<size_t>(n)] : x.s);
          std::vector<double> p(keys);
          double total = 0, d = 0;
          for (size_t j = 0; j < keys; ++j) {
            double dot = 0;
            for (size_t c = 0; c < static_cast<size_t>(x.e); ++c)
              dot += q[qi + c] * k[row(static_cast<int64_t>(j), x.s, x.e) + c];
            total += p[j] = std::exp(dot * scale + bias[bi + j]);
          }
          for (size_t c = 0; c < static_cast<size_t>(x.m); ++c) {
            for (size_t j = 0; j < keys; ++j) y[yi + c] += p[j] / total * v[row(static_cast<int64_t>(j), x.s, x.m) + c];
            d += dy[yi + c] * y[yi + c];
          }
          for (size_t j = 0; j < keys; ++j) {
            const size_t kj = row(static_cast<int64_t>(j), x.s, x.e), vj = row(static_cast<int64_t>(j), x.s, x.m);
            double slope = -d;
            for (size_t c = 0; c < static_cast<size_t>(x.m); ++c) {
              slope += dy[yi + c] * v[vj + c];
              dv[vj + c] += p[j] / total * dy[yi + c];
            }
            dbias[bi + j] += p[j] / total * slope;
            for (size_t c = 0; c < static_cast<size_t>(x.e); ++c) {
              dq[qi + c] += p[j] / total * slope * scale * k[kj + c];
              dk[kj + c] += p[j] / total * slope * scale * q[qi + c];
            }
          }
        }
  }
};

// B, L, S, H, E, M, and by how much the bias is larger than L and S
const std::vector<std::array<int64_t, 8>> shapes = {{1, 1, 1, 1, 1, 1, 0, 0},      {2, 31, 33, 3, 5, 7, 0, 1},
                                                    {3, 33, 100, 1, 1, 31, 40, 5}, {2, 130, 97, 2, 33, 40, 1, 70},
                                                    {3, 65, 65, 2, 0, 33, 3, 2},   {4, 64, 64, 2, 32, 32, 0, 0}};

void for_all(const std::vector<std::array<int64_t, 8>>& sizes, const std::function<void(const Case&)>& f) {
  for (const Device device : devices())
    for (const auto& shape : sizes)
      for (const bool shared : {false, true})
        for (const bool padded : {false, true}) {
          CAPTURE(shape[1]);
          CAPTURE(shape[4]);
          CAPTURE(shared);
          CAPTURE(padded);
          CAPTURE(name(device));
          f(Case(shape, shared, padded, device));
        }
}

struct Outcome {
  Tensor y, dy;
  std::vector<Tensor> gradients;  // of v and the bias; before them of q and k, if there are any
};
Outcome run(const Case& x) {
  std::vector<Tensor> in = x.inputs();
  for (Tensor& t : in) t.set_wants_grad();
  Tape tape;
  const Tensor y = x.run(in), dy = random_tensor(Shape{y.size(), 1}, 5, -1, 1, y.device());
  const Gradients gradients = tape.backward(weighted_sum(y, dy));
  Outcome result{y, dy, {}};
  for (const Tensor& t : in) result.gradients.push_back(gradients.of(t));
  return result;
}

}  // namespace

TEST_CASE("biased_softmax_attention and its gradients equal their definition") {
  for_all(shapes, [](const Case& x) {
    const Outcome result = run(x);
    const Reference reference(x, doubles(result.dy));
    check_close(result.y, reference.y, reduction);
    std::vector<std::vector<double>> expected{reference.dv, reference.dbias};
    if (x.e) expected = {reference.dq, reference.dk, reference.dv, reference.dbias};
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      check_close(result.gradients[i], expected[i], reduction);
    }
  });
}

TEST_CASE("biased_softmax_attention: gradients by four-point differences") {
  for_all({{2, 7, 9, 2, 4, 3, 1, 2}, {2, 7, 7, 2, 0, 3, 0, 0}},
          [](const Case& x) { check_gradients([&x](const auto& in) { return x.run(in); }, x.inputs()); });
}

TEST_CASE("biased_softmax_attention: a bias of minus infinity hides a key, and a query may see none") {
  constexpr float none = -std::numeric_limits<float>::infinity();
  for (const Device device : devices()) {
    const Case x({1, 3, 3, 1, 2, 2, 0, 0}, true, false, device);
    const Tensor bias(Shape{1, 3, 3}, {0, 0, none, none, none, none, 0, 0, 0}, device);
    Tensor v = x.v;
    v.set_wants_grad();
    Tape tape;
    const Tensor y = x.run({x.q, x.k, v, bias});
    const AttentionMask two{false, Indices(Shape{1}, {2}, device)}, all{false, {}};
    const auto some = softmax_attention(x.q, x.k, x.v, two).to_vector(),
               whole = softmax_attention(x.q, x.k, x.v, all).to_vector();
    check_close(y, {some[0], some[1], 0, 0, whole[4], whole[5]}, rounding);
    const std::vector<float> dv = tape.backward(sum(y)).of(v).to_vector();
    CHECK(std::all_of(dv.begin(), dv.end(), [](float number) { return std::isfinite(number); }));
  }
}

TEST_CASE("biased_softmax_attention: the number of threads changes nothing") {
  for (const bool shared : {false, true}) {
    const Case x({2, 130, 97, 2, 33, 40, 0, 0}, shared, true, Device::cpu);
    const auto all = [&x] {
      const Outcome result = run(x);
      std::vector<std::vector<float>> numbers{result.y.to_vector()};
      for (const Tensor& gradient : result.gradients) numbers.push_back(gradient.to_vector());
      return numbers;
    };
    const auto expected = all();
    for (const int some : {1, 2, 5}) {
      const OmpThreads threads(some);
      CHECK(all() == expected);
    }
  }
}

TEST_CASE("biased_softmax_attention: no matrix of L x S beside the bias, and beside its gradient if that is wanted") {
  for (const Device device : devices())
    for (const bool wants_bias : {false, true}) {
      const auto peak = [&](int64_t l) {
        const auto input = [&](uint64_t seed) {
          return random_tensor(Shape{2, l, 1, 8}, seed, -1, 1, device).set_wants_grad();
        };
        const Tensor q = input(1), k = input(2), v = input(3);
        const Tensor bias = random_tensor(Shape{1, l, l}, 4, -1, 1, device).set_wants_grad(wants_bias);
        reset_peak(device);
        const int64_t before = memory_use(device).live;
        Tape tape;
        tape.backward(sum(biased_softmax_attention(q, k, v, bias, {.causal = false, .lengths = {}})));
        return memory_use(device).peak - before - (wants_bias ? bias.size() * 4 : 0);
      };
      CHECK_LE(peak(400), peak(100) * 42 / 10);
    }
}

TEST_CASE("biased_softmax_attention names what does not match") {
  const Tensor x = Tensor::full({2, 10, 3, 4}, 0), none;
  const AttentionMask full{.causal = false, .lengths = {}};
  const auto bias = [](Shape shape) { return Tensor::full(shape, 0); };
  check_fails(
      [&] {
        biased_softmax_attention(x, x, x, bias({3, 10, 10}), {});
      },
      "biased_softmax_attention: it has no causal form");
  check_fails(
      [&] {
        biased_softmax_attention(x, x, x, bias({3, 10, 9}), full);
      },
      "biased_softmax_attention: bias [3,10,9] does not cover 3 heads, 10 queries and 10 keys");
  check_fails(
      [&] {
        biased_softmax_attention(none, none, x, bias({2, 3, 9, 10}), full);
      },
      "biased_softmax_attention: bias [2,3,9,10] does not cover 3 heads, 10 queries and 10 keys");
  check_fails(
      [&] {
        biased_softmax_attention(x, x, x, bias({1, 3, 10, 10}), full);
      },
      "biased_softmax_attention: bias [1,3,10,10] is neither [H,rows,columns] nor [B,H,rows,columns] with B 2");
  check_fails(
      [&] {
        biased_softmax_attention(x, none, x, bias({3, 10, 10}), full);
      },
      "biased_softmax_attention: k [0] does not match q [2,10,3,4]");
  check_fails(
      [&] {
        biased_softmax_attention(none, none, bias({2, 3}), bias({3, 10, 10}), full);
      },
      "biased_softmax_attention: v [2,3] is not [B,S,H,M]");
}

TEST_CASE("biased_softmax_attention: running out of memory is an error, forward and backward") {
  const Tensor q = random_tensor(Shape{1, 64, 1, 4096}, 1).set_wants_grad(), bias = Tensor::full({1, 64, 64}, 0);
  const AttentionMask full{.causal = false, .lengths = {}};
  check_out_of_memory([&] { biased_softmax_attention(q, q, q, bias, full); });
  Tape tape;
  const Tensor loss = sum(biased_softmax_attention(q, q, q, bias, full));
  check_out_of_memory([&] { tape.backward(loss); });
}
