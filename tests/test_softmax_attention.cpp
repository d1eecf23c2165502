#include <algorithm>

#include "ops/kernels/softmax_attention.h"
#include "ops/reductions.h"
#include "ops/softmax_attention.h"
#include "tests/check.h"
#include "tests/memory_limit.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Case {
  int64_t b, l, s, h, e, m;
  bool causal;
  Tensor q, k, v;
  Indices lengths;  // or empty
  Dropout dropout;
  Case(const std::array<int64_t, 6>& sizes, bool is_causal, bool padded, Device device)
      : b(sizes[0]),
        l(sizes[1]),
        s(is_causal ? sizes[1] : sizes[2]),
        h(sizes[3]),
        e(sizes[4]),
        m(sizes[5]),
        causal(is_causal),
        q(random_tensor(Shape{b, l, h, e}, 1, -2, 2, device)),
        k(random_tensor(Shape{b, s, h, e}, 2, -2, 2, device)),
        v(random_tensor(Shape{b, s, h, m}, 3, -2, 2, device)) {
    if (!padded) return;
    std::vector<int32_t> some;  // none, all, and what is between
    for (int64_t n = 0; n < b; ++n) some.push_back(static_cast<int32_t>(n == 0 ? 0 : n == 1 ? s : s - s / (n + 1)));
    lengths = Indices(Shape{b}, some, device);
  }
  AttentionMask mask() const { return {causal, lengths}; }
  int64_t keys(int64_t n) const { return lengths ? lengths.to_vector()[static_cast<size_t>(n)] : s; }
};

// By the definition, O(L S) in double: y, and for L = sum_i dy_i . y_i the gradients of q, k and v.
struct Reference {
  std::vector<double> y, dq, dk, dv;
  Reference(const Case& x, const std::vector<double>& dy)
      : y(dy.size(), 0),
        dq(static_cast<size_t>(x.q.size()), 0),
        dk(static_cast<size_t>(x.k.size()), 0),
        dv(static_cast<size_t>(x.v.size()), 0) {
    const auto q = doubles(x.q), k = doubles(x.k), v = doubles(x.v);
    const double scale = 1 / std::sqrt(static_cast<double>(x.e));
    for (int64_t n = 0; n < x.b; ++n)
      for (int64_t head = 0; head < x.h; ++head)
        for (int64_t i = 0; i < x.l; ++i) {
          // Where position t of q or y, and of k or v, begins.
          const auto row = [&](int64_t t, int64_t length, int64_t width) {
            return static_cast<size_t>(((n * length + t) * x.h + head) * width);
          };
          const size_t qi = row(i, x.l, x.e), yi = row(i, x.l, x.m);
          const int64_t seen = x.causal ? std::min(x.keys(n), i + 1) : x.keys(n);
          std::vector<double> p;
          for (int64_t j = 0; j < seen; ++j) {
            double dot = 0;
            for (size_t c = 0; c < static_cast<size_t>(x.e); ++c) dot += q[qi + c] * k[row(j, x.s, x.e) + c];
            p.push_back(dot * scale);
          }
          const double largest = p.empty() ? 0 : *std::max_element(p.begin(), p.end());
          double total = 0;
          for (double& weight : p) total += weight = std::exp(weight - largest);
          for (double& weight : p) weight /= total;
          std::vector<double> kept;  // what dropout multiplies the weights with
          const AttentionSizes sizes{x.b, x.l, x.s, x.h, x.e, x.m, x.causal};
          for (int64_t j = 0; j < seen; ++j) {
            const auto number = static_cast<uint64_t>(first_weight(sizes, n * x.h + head, i) + j);
            const double bits = x.dropout.key.bits(number / 2) >> (16 * (number % 2)) & 0xffff;
            kept.push_back(bits >= x.dropout.p * 65536 ? 1 / (1 - static_cast<double>(x.dropout.p)) : 0);
          }
          double d = 0;
          for (size_t c = 0; c < static_cast<size_t>(x.m); ++c) {
            for (int64_t j = 0; j < seen; ++j)
              y[yi + c] += kept[static_cast<size_t>(j)] * p[static_cast<size_t>(j)] * v[row(j, x.s, x.m) + c];
            d += dy[yi + c] * y[yi + c];
          }
          for (int64_t j = 0; j < seen; ++j) {
            const size_t kj = row(j, x.s, x.e), vj = row(j, x.s, x.m);
            double slope = -d;
            for (size_t c = 0; c < static_cast<size_t>(x.m); ++c) {
              slope += kept[static_cast<size_t>(j)] * dy[yi + c] * v[vj + c];
              dv[vj + c] += kept[static_cast<size_t>(j)] * p[static_cast<size_t>(j)] * dy[yi + c];
            }
            slope *= p[static_cast<size_t>(j)] * scale;
            for (size_t c = 0; c < static_cast<size_t>(x.e); ++c) {
              dq[qi + c] += slope * k[kj + c];
              dk[kj + c] += slope * q[qi + c];
            }
          }
        }
  }
};

// B, L, S, H, E, M
const std::vector<std::array<int64_t, 6>> shapes = {
    {1, 1, 1, 1, 1, 1},     {2, 31, 33, 3, 5, 7},    {1, 65, 3, 2, 33, 3},    {3, 33, 100, 1, 1, 31},
    {4, 64, 64, 2, 32, 32}, {1, 130, 97, 2, 16, 48}, {1, 40, 50, 1, 256, 200}};

void for_all(const std::vector<std::array<int64_t, 6>>& sizes, const std::function<void(const Case&)>& f) {
  for (const Device device : devices())
    for (const auto& shape : sizes)
      for (const bool causal : {false, true})
        for (const bool padded : {false, true}) {
          CAPTURE(shape[0]);
          CAPTURE(shape[1]);
          CAPTURE(shape[4]);
          CAPTURE(causal);
          CAPTURE(padded);
          f(Case(shape, causal, padded, device));
        }
}

}  // namespace

TEST_CASE("softmax_attention and its gradients equal their definitions, causal and not, with padding and dropout") {
  const auto check_case = [](const Case& x) {
    Tensor q = x.q, k = x.k, v = x.v;
    for (Tensor* t : {&q, &k, &v}) t->set_wants_grad();
    Tape tape;
    const Tensor y = softmax_attention(q, k, v, x.mask(), x.dropout);
    const Tensor dy = random_tensor(Shape{y.size(), 1}, 4, -1, 1, y.device());
    const Gradients gradients = tape.backward(weighted_sum(y, dy));
    const Reference reference(x, doubles(dy));
    check_close(y, reference.y, reduction);
    check_close(gradients.of(q), reference.dq, reduction);
    check_close(gradients.of(k), reference.dk, reduction);
    check_close(gradients.of(v), reference.dv, reduction);
  };
  for_all(shapes, check_case);
  for_all({{2, 31, 33, 3, 5, 7}, {1, 70, 100, 2, 33, 40}}, [&](Case x) {
    x.dropout = {0.25f, Key{5}};
    check_case(x);
  });
}

TEST_CASE("softmax_attention's gradients by four-point differences, with and without dropout") {
  for_all({{2, 5, 4, 3, 4, 2}}, [](Case x) {
    for (const float p : {0.0f, 0.4f}) {
      x.dropout = {p, Key{5}};
      check_gradients([&x](const auto& in) { return softmax_attention(in[0], in[1], in[2], x.mask(), x.dropout); },
                      {x.q, x.k, x.v});
    }
  });
}

TEST_CASE("softmax_attention drops the share p of its weights, other ones with another key") {
  for (const Device device : devices()) {
    // All scores and values are equal, so y is the share of weights that are kept, over 1 - p.
    const Tensor zero = Tensor::full(Shape{2, 200, 3, 4}, 0, device),
                 one = Tensor::full(Shape{2, 200, 3, 4}, 1, device);
    const auto drop = [&](uint64_t key) {
      return doubles(softmax_attention(zero, zero, one, {.causal = false}, {0.1f, Key{key}}));
    };
    const std::vector<double> y = drop(1);
    double mean = 0;
    for (const double number : y) mean += number / static_cast<double>(y.size());
    CHECK(mean == doctest::Approx(1).epsilon(0.005));  // 240,000 weights: standard deviation 0.0007
    CHECK(drop(1) == y);
    CHECK(drop(2) != y);
  }
}

TEST_CASE("softmax_attention is right where all scores are large: exponentials do not overflow") {
  for (const Device device : devices()) {
    Case x({1, 70, 70, 1, 4, 3}, true, false, device);
    std::vector<float> large = x.q.to_vector();
    for (float& number : large) number *= 300;
    x.q = Tensor(x.q.shape(), large, device);
    const Tensor y = softmax_attention(x.q, x.k, x.v);
    // Scores of 1,000, of which float32 keeps four digits behind the point.
    check_close(y, Reference(x, std::vector<double>(static_cast<size_t>(y.size()))).y, 1e-3);
  }
}

TEST_CASE("softmax_attention position by position, from a cache of keys and values") {
  for (const Device device : devices())
    for (const auto& shape : {std::array<int64_t, 6>{2, 31, 31, 3, 5, 7}, {1, 140, 140, 2, 32, 40}}) {
      const Case x(shape, true, false, device);
      const std::vector<double> whole = doubles(softmax_attention(x.q, x.k, x.v));
      KeyValueCache cache{Tensor(Shape{x.b, x.h, x.e, x.l}, device), Tensor(Shape{x.b, x.h, x.l, x.m}, device)};
      const auto position = [&x](const Tensor& t, int64_t i) {
        const int64_t row = x.h * t.shape()[3];
        const auto all = t.to_vector();
        std::vector<float> part;
        for (int64_t n = 0; n < x.b; ++n)
          part.insert(part.end(), all.begin() + (n * x.l + i) * row, all.begin() + (n * x.l + i + 1) * row);
        return Tensor(Shape{x.b, 1, x.h, t.shape()[3]}, part, t.device());
      };
      for (int64_t i = 0; i < x.l; ++i) {
        const Tensor y = softmax_attention_step(position(x.q, i), position(x.k, i), position(x.v, i), cache,
                                                Indices(Shape{1}, {static_cast<int32_t>(i)}, device));
        std::vector<double> expected;
        const int64_t row = x.h * x.m;
        for (int64_t n = 0; n < x.b; ++n)
          expected.insert(expected.end(), whole.begin() + (n * x.l + i) * row, whole.begin() + (n * x.l + i + 1) * row);
        check_close(y, expected, reduction);
      }
    }
}

TEST_CASE("softmax_attention_step with a cache that wraps sees the last positions") {
  for (const Device device : devices())
    for (const auto& [l, capacity] : std::vector<std::pair<int64_t, int64_t>>{{20, 7}, {140, 130}, {5, 1}, {4, 9}}) {
      CAPTURE(capacity);
      const Case x({2, l, l, 1, 5, 7}, false, false, device);
      KeyValueCache cache{Tensor(Shape{2, 1, 5, capacity}, device), Tensor(Shape{2, 1, capacity, 7}, device), true};
      const auto positions = [](const Tensor& t, int64_t first, int64_t end) {
        const int64_t width = t.shape()[3], row = t.shape()[1] * width;
        const auto all = t.to_vector();
        std::vector<float> part;
        for (int64_t n = 0; n < 2; ++n)
          part.insert(part.end(), all.begin() + n * row + first * width, all.begin() + n * row + end * width);
        return Tensor(Shape{2, end - first, 1, width}, part, t.device());
      };
      for (int64_t i = 0; i < l; ++i) {
        const Tensor q = positions(x.q, i, i + 1);
        const int64_t first = std::max<int64_t>(0, i + 1 - capacity);
        const Tensor expected =
            softmax_attention(q, positions(x.k, first, i + 1), positions(x.v, first, i + 1), {.causal = false});
        const Tensor y = softmax_attention_step(q, positions(x.k, i, i + 1), positions(x.v, i, i + 1), cache,
                                                Indices(Shape{1}, {static_cast<int32_t>(i)}, device));
        check_close(y, doubles(expected), reduction);
      }
    }
}

TEST_CASE("the number of threads changes nothing in softmax_attention") {
  const Case x({2, 70, 70, 3, 8, 5}, true, false, Device::cpu);
  const auto all = [&x] {
    Tensor q = x.q, k = x.k, v = x.v;
    for (Tensor* t : {&q, &k, &v}) t->set_wants_grad();
    Tape tape;
    const Tensor y = softmax_attention(q, k, v);
    const Gradients gradients = tape.backward(sum(y));
    return std::vector{y.to_vector(), gradients.of(q).to_vector(), gradients.of(k).to_vector(),
                       gradients.of(v).to_vector()};
  };
  const auto expected = all();
  for (const int some : {1, 2, 5}) {
    const OmpThreads threads(some);
    CHECK(all() == expected);
  }
}

TEST_CASE("softmax_attention's memory grows with L, not with its square") {
  for (const Device device : devices()) {
    const auto peak = [device](int64_t l) {
      Case x({1, l, l, 1, 8, 8}, true, false, device);
      for (Tensor* t : {&x.q, &x.k, &x.v}) t->set_wants_grad();
      reset_peak(device);
      const int64_t before = memory_use(device).live;
      Tape tape;
      tape.backward(sum(softmax_attention(x.q, x.k, x.v)));
      return memory_use(device).peak - before;
    };
    CHECK_LE(peak(800), peak(200) * 42 / 10);
  }
}

TEST_CASE("softmax_attention names the shapes that do not match") {
  const auto tensor = [](Shape shape) { return Tensor::full(shape, 0); };
  const Tensor q = tensor({2, 5, 3, 4}), v = tensor({2, 5, 3, 7});
  check_fails([&] { softmax_attention(tensor({2, 5, 12}), q, v); }, "softmax_attention: q [2,5,12] is not [B,L,H,E]");
  check_fails([&] { softmax_attention(q, tensor({2, 5, 2, 4}), v); }, "k [2,5,2,4] does not match q [2,5,3,4]");
  check_fails([&] { softmax_attention(q, q, tensor({2, 6, 3, 7})); }, "v [2,6,3,7] does not match k [2,5,3,4]");
  check_fails(
      [&] {
        softmax_attention(q, tensor({2, 6, 3, 4}), tensor({2, 6, 3, 7}));
      },
      "q [2,5,3,4] and k [2,6,3,4] must have the same length to be causal");
  check_fails(
      [&] {
        softmax_attention(q, q, v, {false, Indices(Shape{3}, {1, 2, 3})});
      },
      "softmax_attention: lengths [3] are not one number for each of 2 sequences");
  check_fails(
      [&] {
        softmax_attention(q, q, v, {false, Indices(Shape{2}, {1, 6})});
      },
      "softmax_attention: length 6 of sequence 1 is not in [0, 5]");
  check_fails(
      [&] {
        softmax_attention(q, q, v, {}, {1, Key{1}});
      },
      "softmax_attention: the dropout probability 1 is not in [0, 1)");
  KeyValueCache cache{tensor({2, 3, 4, 8}), tensor({2, 3, 8, 7})};
  const Tensor q1 = tensor({2, 1, 3, 4}), v1 = tensor({2, 1, 3, 7});
  check_fails([&] { softmax_attention_step(q, q, v, cache, Indices(Shape{1}, {0})); }, "q [2,5,3,4] is not [B,1,H,E]");
  check_fails([&] { softmax_attention_step(q1, q1, v1, cache, Indices(Shape{1}, {8})); },
              "softmax_attention_step: position 8 is not in a cache of 8");
  cache.v = tensor({2, 3, 9, 7});
  check_fails([&] { softmax_attention_step(q1, q1, v1, cache, Indices(Shape{1}, {0})); },
              "a cache of k [2,3,4,8] and v");
}

TEST_CASE("softmax_attention: running out of memory is an error, forward and backward") {
  const Tensor q = random_tensor(Shape{1, 2, 1, 4096}, 1).set_wants_grad();
  check_out_of_memory([&] { softmax_attention(q, q, q); });
  Tape tape;
  const Tensor loss = sum(softmax_attention(q, q, q));
  check_out_of_memory([&] { tape.backward(loss); });
}
