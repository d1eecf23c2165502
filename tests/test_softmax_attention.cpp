#include <algorithm>
#include <limits>

#include "ops/kernels/softmax_attention.h"
#include "ops/reductions.h"
#include "ops/softmax_attention.h"
#include "tests/check.h"
#include "tests/memory_limit.h"

using namespace runnel;
using namespace runnel::test;

namespace {

using Lists = std::vector<std::vector<int32_t>>;

struct Case {
  int64_t b, l, s, h, e, m;  // e = 0: without q and k
  bool causal;
  Tensor q, k, v;
  Indices lengths;            // or empty
  std::vector<int32_t> ends;  // the same, or the number of keys
  Dropout dropout;
  Tensor bias;  // or empty
  int64_t query_block = 0, key_block = 0;
  Lists seen;  // with a pattern
  std::optional<Band> band;
  bool by_length = false;

  Case(const std::array<int64_t, 6>& sizes, bool is_causal, bool padded, Device device)
      : b(sizes[0]),
        l(sizes[1]),
        s(is_causal ? sizes[1] : sizes[2]),
        h(sizes[3]),
        e(sizes[4]),
        m(sizes[5]),
        causal(is_causal),
        q(e ? random_tensor(Shape{b, l, h, e}, 1, -2, 2, device) : Tensor()),
        k(e ? random_tensor(Shape{b, s, h, e}, 2, -2, 2, device) : Tensor()),
        v(random_tensor(Shape{b, s, h, m}, 3, -2, 2, device)),
        ends(static_cast<size_t>(b), static_cast<int32_t>(s)) {
    if (!padded) return;
    for (int64_t n = 0; n < b; ++n)  // none, all, and what is between
      ends[static_cast<size_t>(n)] = static_cast<int32_t>(n == 0 ? 0 : n == 1 ? s : s - s / (n + 1));
    lengths = Indices(Shape{b}, ends, device);
  }
  Case& with_bias(int64_t more_rows, int64_t more_columns, bool shared) {
    const int64_t rows = l + more_rows, columns = s + more_columns;
    bias = random_tensor(shared ? Shape{h, rows, columns} : Shape{b, h, rows, columns}, 4, -2, 2, v.device());
    return *this;
  }
  // Lists are drawn at random, that of query block 1 is empty.
  Case& with_pattern(int64_t query_positions, int64_t key_positions, bool banded, bool of_length) {
    query_block = query_positions;
    key_block = key_positions;
    by_length = of_length;
    if (banded) band = Band{.reach = s / 6, .global = s / 12};
    const Key key{11};
    uint64_t draw = 0;
    for (int64_t n = 0; n <= (by_length ? key_blocks() : 0); ++n)
      for (int64_t r = 0; r < query_blocks(); ++r) {
        seen.emplace_back();
        for (int64_t c = 0; c < key_blocks(); ++c)
          if (key.below(draw++, 3) == 0 && r != 1) seen.back().push_back(static_cast<int32_t>(c));
      }
    return *this;
  }
  int64_t query_blocks() const { return (l + query_block - 1) / query_block; }
  int64_t key_blocks() const { return (s + key_block - 1) / key_block; }
  AttentionMask mask() const { return {causal, lengths}; }
  // q, k and v, or v alone; then the bias, if there is one.
  std::vector<Tensor> inputs() const {
    std::vector<Tensor> in = e ? std::vector{q, k, v} : std::vector{v};
    if (bias) in.push_back(bias);
    return in;
  }
  Tensor run(const std::vector<Tensor>& in) const {
    SoftmaxOptions options{.dropout = dropout};
    if (bias) options.bias = in.back();
    if (query_block)
      options.pattern = BlockPattern(query_block, key_block, seen, key_blocks(), v.device(), band, by_length);
    return e ? softmax_attention(in[0], in[1], in[2], mask(), options)
             : softmax_attention({}, {}, in[0], mask(), options);
  }
  bool sees(int64_t n, int64_t i, int64_t j) const {
    const int64_t end = ends[static_cast<size_t>(n)];
    if (j >= end || (causal && j > i)) return false;
    if (!query_block) return true;
    const int64_t first = by_length ? (end + key_block - 1) / key_block * query_blocks() : 0;
    const auto& list = seen[static_cast<size_t>(first + i / query_block)];
    return std::count(list.begin(), list.end(), j / key_block) > 0 &&
           (!band || std::abs(i - j) <= band->reach || j < band->global);
  }
};

// By the definition, O(L S) in double: y, and for L = sum_i dy_i . y_i the gradients of the inputs.
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
    const int64_t shared_by = x.bias.shape().rank() == 3 ? x.b : 1;
    for (int64_t n = 0; n < x.b; ++n)
      for (int64_t head = 0; head < x.h; ++head)
        for (int64_t i = 0; i < x.l; ++i) {
          // Where position t of q or y, and of k or v, begins.
          const auto row = [&](int64_t t, int64_t length, int64_t width) {
            return static_cast<size_t>(((n * length + t) * x.h + head) * width);
          };
          const size_t qi = row(i, x.l, x.e), yi = row(i, x.l, x.m);
          const auto bi =
              x.bias ? static_cast<size_t>(((n / shared_by * x.h + head) * x.bias.shape()[-2] + i) * x.bias.shape()[-1])
                     : 0;
          std::vector<double> p(static_cast<size_t>(x.s), -INFINITY), kept(p.size(), 0);
          double largest = -INFINITY, total = 0, d = 0;
          for (int64_t j = 0; j < x.s; ++j) {
            if (!x.sees(n, i, j)) continue;
            double dot = 0;
            for (size_t c = 0; c < static_cast<size_t>(x.e); ++c) dot += q[qi + c] * k[row(j, x.s, x.e) + c];
            double& score = p[static_cast<size_t>(j)];
            score = dot * scale + (x.bias ? bias[bi + static_cast<size_t>(j)] : 0);
            largest = std::max(largest, score);
            // What dropout multiplies the weight with.
            const AttentionSizes sizes{x.b, x.l, x.s, x.h, x.e, x.m, x.causal};
            const auto number = static_cast<uint64_t>(first_weight(sizes, n * x.h + head, i) + j);
            const double bits = x.dropout.key.bits(number / 2) >> (16 * (number % 2)) & 0xffff;
            kept[static_cast<size_t>(j)] = bits >= x.dropout.p * 65536 ? 1 / (1 - static_cast<double>(x.dropout.p)) : 0;
          }
          if (largest == -INFINITY) continue;  // sees no key: zeros
          for (double& weight : p) total += weight = std::exp(weight - largest);
          for (double& weight : p) weight /= total;
          for (size_t c = 0; c < static_cast<size_t>(x.m); ++c) {
            for (size_t j = 0; j < p.size(); ++j)
              y[yi + c] += kept[j] * p[j] * v[row(static_cast<int64_t>(j), x.s, x.m) + c];
            d += dy[yi + c] * y[yi + c];
          }
          for (size_t j = 0; j < p.size(); ++j) {
            if (p[j] == 0) continue;
            const size_t kj = row(static_cast<int64_t>(j), x.s, x.e), vj = row(static_cast<int64_t>(j), x.s, x.m);
            double slope = -d;
            for (size_t c = 0; c < static_cast<size_t>(x.m); ++c) {
              slope += kept[j] * dy[yi + c] * v[vj + c];
              dv[vj + c] += kept[j] * p[j] * dy[yi + c];
            }
            slope *= p[j];
            if (x.bias) dbias[bi + j] += slope;
            for (size_t c = 0; c < static_cast<size_t>(x.e); ++c) {
              dq[qi + c] += slope * scale * k[kj + c];
              dk[kj + c] += slope * scale * q[qi + c];
            }
          }
        }
  }
};

struct Outcome {
  Tensor y, dy;
  std::vector<Tensor> gradients;  // of the inputs
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
void check_equals_definition(const Case& x) {
  const Outcome result = run(x);
  const Reference reference(x, doubles(result.dy));
  check_close(result.y, reference.y, reduction);
  std::vector<std::vector<double>> expected{reference.dv};
  if (x.e) expected = {reference.dq, reference.dk, reference.dv};
  if (x.bias) expected.push_back(reference.dbias);
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    check_close(result.gradients[i], expected[i], reduction);
  }
}
void check_differences(const Case& x) {
  check_gradients([&x](const auto& in) { return x.run(in); }, x.inputs());
}
void check_threads(const Case& x) {
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

// Bytes at the peak of an update of q, k, v and the bias, if that wants a gradient.
int64_t peak_of(Case x) {
  for (Tensor* t : {&x.q, &x.k, &x.v}) t->set_wants_grad();
  reset_peak(x.v.device());
  const int64_t before = memory_use(x.v.device()).live;
  Tape tape;
  tape.backward(sum(x.run(x.inputs())));
  return memory_use(x.v.device()).peak - before;
}

// B, L, S, H, E, M
const std::vector<std::array<int64_t, 6>> shapes = {
    {1, 1, 1, 1, 1, 1},     {2, 31, 33, 3, 5, 7},    {1, 65, 3, 2, 33, 3},    {3, 33, 100, 1, 1, 31},
    {4, 64, 64, 2, 32, 32}, {1, 130, 97, 2, 16, 48}, {1, 40, 50, 1, 256, 200}};
struct PatternShape {
  std::array<int64_t, 6> sizes;
  int64_t query_block, key_block;
};
const std::vector<PatternShape> pattern_shapes = {{{1, 1, 1, 1, 1, 1}, 1, 1},        {{2, 31, 33, 3, 5, 7}, 4, 6},
                                                  {{3, 33, 100, 1, 1, 31}, 10, 50},  {{1, 130, 97, 2, 33, 40}, 50, 10},
                                                  {{1, 130, 140, 1, 32, 32}, 70, 3}, {{2, 64, 64, 2, 32, 32}, 64, 64},
                                                  {{2, 47, 50, 1, 5, 3}, 3, 7}};
struct BiasShape {
  std::array<int64_t, 6> sizes;
  int64_t more_rows, more_columns;  // than L and S
};
const std::vector<BiasShape> bias_shapes = {{{1, 1, 1, 1, 1, 1}, 0, 0},      {{2, 31, 33, 3, 5, 7}, 0, 1},
                                            {{3, 33, 100, 1, 1, 31}, 40, 5}, {{2, 130, 97, 2, 33, 40}, 1, 70},
                                            {{3, 65, 65, 2, 0, 33}, 3, 2},   {{4, 64, 64, 2, 32, 32}, 0, 0}};

void for_all(const std::vector<std::array<int64_t, 6>>& sizes, const std::function<void(Case)>& f) {
  for (const Device device : devices())
    for (const auto& shape : sizes)
      for (const bool causal : {false, true})
        for (const bool padded : {false, true}) {
          CAPTURE(shape[0]);
          CAPTURE(shape[1]);
          CAPTURE(shape[4]);
          CAPTURE(causal);
          CAPTURE(padded);
          CAPTURE(name(device));
          f(Case(shape, causal, padded, device));
        }
}
void for_all_patterns(const std::vector<PatternShape>& all, const std::function<void(const Case&)>& f) {
  for (const PatternShape& shape : all)
    for_all({shape.sizes}, [&](const Case& x) {
      for (const bool banded : {false, true})
        for (const bool by_length : {false, true}) {
          if (by_length && (banded || !x.lengths)) continue;
          CAPTURE(shape.query_block);
          CAPTURE(banded);
          CAPTURE(by_length);
          f(Case(x).with_pattern(shape.query_block, shape.key_block, banded, by_length));
        }
    });
}
void for_all_biases(const std::vector<BiasShape>& all, const std::function<void(const Case&)>& f) {
  for (const BiasShape& shape : all)
    for_all({shape.sizes}, [&](const Case& x) {
      for (const bool shared : {false, true}) {
        CAPTURE(shared);
        f(Case(x).with_bias(shape.more_rows, shape.more_columns, shared));
      }
    });
}

Lists diagonal(int64_t blocks) {
  Lists lists;
  for (int32_t r = 0; r < blocks; ++r) lists.push_back({r});
  return lists;
}

const Dropout dropped{0.25f, Key{5}};

}  // namespace

TEST_CASE("softmax_attention and its gradients equal their definitions, causal and not, with padding and dropout") {
  for_all(shapes, check_equals_definition);
  for_all({{2, 31, 33, 3, 5, 7}, {1, 70, 100, 2, 33, 40}}, [](Case x) {
    x.dropout = dropped;
    check_equals_definition(x);
  });
}

TEST_CASE("softmax_attention of one long sequence, whose queries the CPU's threads share, equals its definition") {
  for (const bool causal : {false, true}) {
    Case x({1, 770, 780, 1, 5, 3}, causal, false, Device::cpu);
    check_equals_definition(Case(x).with_bias(2, 1, true));
    x.dropout = dropped;
    check_equals_definition(x);
  }
}

TEST_CASE("softmax_attention with a pattern of blocks, and its gradients, equal their definitions") {
  for_all_patterns(pattern_shapes, check_equals_definition);
}

TEST_CASE("softmax_attention with a bias, and its gradients, equal their definitions") {
  for_all_biases(bias_shapes, check_equals_definition);
}

TEST_CASE("softmax_attention's gradients by four-point differences, with dropout, a pattern and a bias") {
  for_all({{2, 5, 4, 3, 4, 2}}, [](Case x) {
    for (const float p : {0.0f, 0.4f}) {
      x.dropout = {p, Key{5}};
      check_differences(x);
    }
  });
  for_all_patterns({{{2, 11, 9, 2, 4, 3}, 4, 3}}, check_differences);
  for_all_biases({{{2, 7, 9, 2, 4, 3}, 1, 2}, {{2, 7, 7, 2, 0, 3}, 0, 0}}, check_differences);
}

TEST_CASE("softmax_attention with a pattern of all blocks equals that without one") {
  for (const Device device : devices()) {
    const Case x({2, 70, 70, 2, 8, 5}, true, true, device);
    Lists all;
    for (int r = 0; r < 5; ++r) all.push_back({0, 1, 2, 3, 4});
    const Tensor y = softmax_attention(x.q, x.k, x.v, x.mask(), {.pattern = BlockPattern(16, 16, all, 5, device)});
    check_close(y, doubles(softmax_attention(x.q, x.k, x.v, x.mask())), reduction);
  }
}

TEST_CASE("softmax_attention with a pattern of empty lists is zero, and so are its gradients") {
  for (const Device device : devices()) {
    Case x({2, 70, 70, 2, 8, 5}, false, false, device);
    x.query_block = x.key_block = 35;
    x.seen = {{}, {}};
    const Outcome result = run(x);
    check_close(result.y, std::vector<double>(static_cast<size_t>(result.y.size())), reduction);
    for (const Tensor& gradient : result.gradients)
      check_close(gradient, std::vector<double>(static_cast<size_t>(gradient.size())), reduction);
  }
}

TEST_CASE("softmax_attention in a band that hides nothing gives the same bytes as without a band") {
  for (const Device device : devices())
    for (const Band band : {Band{.reach = 139}, Band{.reach = 0, .global = 140}}) {
      Case x = Case({2, 140, 140, 1, 8, 5}, false, true, device).with_pattern(70, 30, false, false);
      const std::vector<float> expected = x.run(x.inputs()).to_vector();
      x.band = band;
      CHECK(x.run(x.inputs()).to_vector() == expected);
    }
}

TEST_CASE("softmax_attention: a bias of minus infinity hides a key, and a query may see none") {
  constexpr float none = -std::numeric_limits<float>::infinity();
  for (const Device device : devices()) {
    const Case x({1, 3, 3, 1, 2, 2}, false, false, device);
    const Tensor bias(Shape{1, 3, 3}, {0, 0, none, none, none, none, 0, 0, 0}, device);
    Tensor v = x.v;
    v.set_wants_grad();
    Tape tape;
    const Tensor y = softmax_attention(x.q, x.k, v, {.causal = false}, {.bias = bias});
    const AttentionMask two{false, Indices(Shape{1}, {2}, device)}, all{false, {}};
    const auto some = softmax_attention(x.q, x.k, x.v, two).to_vector(),
               whole = softmax_attention(x.q, x.k, x.v, all).to_vector();
    check_close(y, {some[0], some[1], 0, 0, whole[4], whole[5]}, rounding);
    const std::vector<float> dv = tape.backward(sum(y)).of(v).to_vector();
    CHECK(std::all_of(dv.begin(), dv.end(), [](float number) { return std::isfinite(number); }));
  }
}

TEST_CASE("softmax_attention drops the share p of its weights, other ones with another key") {
  for (const Device device : devices()) {
    // All scores and values are equal, so y is the share of weights that are kept, over 1 - p.
    const Tensor zero = Tensor::full(Shape{2, 200, 3, 4}, 0, device),
                 one = Tensor::full(Shape{2, 200, 3, 4}, 1, device);
    const auto drop = [&](uint64_t key) {
      return doubles(softmax_attention(zero, zero, one, {.causal = false}, {.dropout = {0.1f, Key{key}}}));
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

TEST_CASE("the number of threads changes nothing in softmax_attention, with a pattern and a bias either") {
  check_threads(Case({2, 130, 130, 3, 8, 5}, true, false, Device::cpu));
  check_threads(Case({2, 130, 130, 1, 33, 40}, true, false, Device::cpu).with_pattern(3, 7, false, false));
  check_threads(Case({2, 130, 97, 2, 33, 40}, false, true, Device::cpu).with_pattern(50, 10, false, false));
  for (const bool shared : {false, true})
    check_threads(Case({2, 130, 97, 2, 33, 40}, false, true, Device::cpu).with_bias(0, 0, shared));
}

TEST_CASE("softmax_attention's memory grows with L, not with its square") {
  for (const Device device : devices()) {
    const auto peak = [device](int64_t l) { return peak_of(Case({1, l, l, 1, 8, 8}, true, false, device)); };
    CHECK_LE(peak(800), peak(200) * 42 / 10);
  }
}

TEST_CASE("softmax_attention with a pattern: memory grows with the listed pairs of blocks, not with the square of L") {
  for (const Device device : devices()) {
    const auto peak = [device](int64_t l) {
      Case x({1, l, l, 1, 8, 8}, true, false, device);
      x.query_block = x.key_block = 8;
      x.seen = diagonal(l / 8);
      return peak_of(x);
    };
    CHECK_LE(peak(800), peak(200) * 42 / 10);
  }
}

TEST_CASE("softmax_attention: no matrix of L x S beside the bias, and beside its gradient if that is wanted") {
  for (const Device device : devices())
    for (const bool wants_bias : {false, true}) {
      const auto peak = [&](int64_t l) {
        Case x({2, l, l, 1, 8, 8}, false, false, device);
        x.with_bias(0, 0, true).bias.set_wants_grad(wants_bias);
        return peak_of(x) - (wants_bias ? x.bias.size() * 4 : 0);
      };
      CHECK_LE(peak(400), peak(100) * 42 / 10);
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
        softmax_attention(q, q, v, {}, {.dropout = {1, Key{1}}});
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

TEST_CASE("softmax_attention names what does not match of a pattern") {
  const Tensor x = Tensor::full({2, 10, 1, 4}, 0);
  const auto pattern = [](Lists seen, int64_t block = 5, int64_t key_blocks = 2) {
    return BlockPattern(block, block, seen, key_blocks, Device::cpu);
  };
  check_fails([&] { pattern({{0}, {2}}); }, "block pattern: query block 1 sees key block 2 of 2");
  check_fails([&] { pattern({{1, 0}, {}}); }, "block pattern: the key blocks of query block 0 are not ascending");
  check_fails([&] { pattern({{0}}, 0); }, "block pattern: blocks of 0 queries and 0 keys");
  check_fails(
      [&] {
        BlockPattern(5, 5, {{0}, {1}}, 2, Device::cpu, {}, true);
      },
      "block pattern: 2 lists for 3 numbers of key blocks");
  const auto with_band = [](Band band) { BlockPattern(5, 5, {{0}, {1}}, 2, Device::cpu, band); };
  check_fails([&] { with_band({.reach = -1, .global = 2}); },
              "block pattern: a band with a reach of -1 and 2 global keys");
  check_fails([&] { with_band({.reach = 1, .global = -1}); },
              "block pattern: a band with a reach of 1 and -1 global keys");
  const auto attend = [&x](const Tensor& v, const SoftmaxOptions& options) { softmax_attention(x, x, v, {}, options); };
  check_fails([&] { attend(x, {.pattern = pattern({{0}})}); },
              "softmax_attention: a pattern of 1 blocks of 5 does not match q [2,10,1,4]");
  check_fails(
      [&] {
        attend(x, {.pattern = pattern({{0}, {1}}, 5, 3)});
      },
      "softmax_attention: a pattern of 3 blocks of 5 does not match k [2,10,1,4]");
  check_fails(
      [&] {
        attend(Tensor::full({2, 9, 1, 4}, 0), {.pattern = pattern({{0}, {1}})});
      },
      "softmax_attention: v [2,9,1,4] does not match k [2,10,1,4]");
  const char* const alone = "softmax_attention: dropout, a bias and a pattern of blocks exclude each other";
  const Tensor bias = Tensor::full({1, 10, 10}, 0);
  check_fails([&] { attend(x, {.dropout = dropped, .pattern = pattern({{0}, {1}})}); }, alone);
  check_fails([&] { attend(x, {.bias = bias, .pattern = pattern({{0}, {1}})}); }, alone);
  check_fails([&] { attend(x, {.dropout = dropped, .bias = bias}); }, alone);
  check_fails(
      [&] {
        softmax_attention({}, {}, x, {}, {.pattern = pattern({{0}, {1}})});
      },
      "softmax_attention: q [0] is not [B,L,H,E]");
}

TEST_CASE("softmax_attention names what does not match of a bias") {
  const Tensor x = Tensor::full({2, 10, 3, 4}, 0), none;
  const auto attend = [](const Tensor& q, const Tensor& k, const Tensor& v, Shape bias) {
    softmax_attention(q, k, v, {.causal = false}, {.bias = Tensor::full(bias, 0)});
  };
  check_fails(
      [&] {
        attend(x, x, x, {3, 10, 9});
      },
      "softmax_attention: bias [3,10,9] does not cover 3 heads, 10 queries and 10 keys");
  check_fails(
      [&] {
        attend(none, none, x, {2, 3, 9, 10});
      },
      "softmax_attention: bias [2,3,9,10] does not cover 3 heads, 10 queries and 10 keys");
  check_fails(
      [&] {
        attend(x, x, x, {1, 3, 10, 10});
      },
      "softmax_attention: bias [1,3,10,10] is neither [H,rows,columns] nor [B,H,rows,columns] with B 2");
  check_fails([&] { attend(x, none, x, {3, 10, 10}); }, "softmax_attention: k [0] does not match q [2,10,3,4]");
  check_fails(
      [&] {
        attend(none, none, Tensor::full({2, 3}, 0), {3, 10, 10});
      },
      "softmax_attention: v [2,3] is not [B,S,H,M]");
}

TEST_CASE("softmax_attention: running out of memory is an error, forward and backward") {
  const auto check_case = [](int64_t l, const SoftmaxOptions& options) {
    const Tensor q = random_tensor(Shape{1, l, 1, 4096}, 1).set_wants_grad();
    check_out_of_memory([&] { softmax_attention(q, q, q, {}, options); });
    Tape tape;
    const Tensor loss = sum(softmax_attention(q, q, q, {}, options));
    check_out_of_memory([&] { tape.backward(loss); });
  };
  check_case(2, {});
  check_case(64, {.pattern = BlockPattern(32, 32, diagonal(2), 2, Device::cpu)});
  check_case(64, {.bias = Tensor::full({1, 64, 64}, 0)});
}
