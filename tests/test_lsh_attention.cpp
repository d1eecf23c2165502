#include <algorithm>
#include <numeric>
#include <set>

#include "ops/kernels/lsh_attention.h"
#include "ops/lsh_attention.h"
#include "ops/reductions.h"
#include "ops/softmax_attention.h"
#include "tests/check.h"
#include "tests/memory_limit.h"

using namespace runnel;
using namespace runnel::test;

namespace {

const Key key{9};

struct Case {
  int64_t b, l, h, e, m;
  Lsh lsh;
  bool causal;
  Tensor q, v;
  Indices lengths;  // or empty
  // B, L, H, E, M
  Case(const std::array<int64_t, 5>& sizes, const Lsh& how, bool is_causal, Device device)
      : b(sizes[0]),
        l(sizes[1]),
        h(sizes[2]),
        e(sizes[3]),
        m(sizes[4]),
        lsh(how),
        causal(is_causal),
        q(random_tensor(Shape{b, l, h, e}, 1, -2, 2, device)),
        v(random_tensor(Shape{b, l, h, m}, 2, -2, 2, device)) {}
  AttentionSizes sizes() const { return {b, l, l, h, e, m, causal}; }
};

// The rotation of a round and head, [E,buckets/2], is numbers [rotation(...), rotation(...) + E buckets/2) of the key.
uint64_t rotation(const Case& x, int64_t round, int64_t head) {
  return static_cast<uint64_t>((round * x.h + head) * x.e * x.lsh.buckets / 2);
}

// [q R, -q R] of one query, in double.
std::vector<double> projections(const Case& x, const double* q, int64_t round, int64_t head) {
  const auto half = static_cast<size_t>(x.lsh.buckets / 2);
  std::vector<double> all(2 * half, 0);
  for (size_t c = 0; c < half; ++c) {
    for (size_t i = 0; i < static_cast<size_t>(x.e); ++i)
      all[c] += q[i] * key.normal(rotation(x, round, head) + i * half + c);
    all[half + c] = -all[c];
  }
  return all;
}

// As the kernel finds them, [rounds,B,H,L].
std::vector<int32_t> find_buckets(const Case& x) {
  const Device device = x.q.device();
  Tensor rotations(Shape{x.lsh.rounds, x.h, x.e, x.lsh.buckets / 2}, device);
  Indices buckets(Shape{x.lsh.rounds, x.b, x.h, x.l}, device);
  DISPATCH(device, lsh_rotations(rotations.data(), key, rotations.size()));
  DISPATCH(device, lsh_hash(buckets.data(), x.q.data(), rotations.data(), x.sizes(), x.lsh));
  return buckets.to_vector();
}

// By the definition, O(L^2) in double, from buckets: y, and for L = sum_i dy_i . y_i the gradients of q and v.
struct Reference {
  std::vector<double> y, dq, dv;
  Reference(const Case& x, const std::vector<int32_t>& buckets, const std::vector<double>& dy)
      : y(dy.size(), 0), dq(static_cast<size_t>(x.q.size()), 0), dv(dy.size(), 0) {
    for (int64_t n = 0; n < x.b * x.h; ++n) {
      find_scores(x, n);
      find_seen(x, buckets, n);
      add_sequence(x, dy, n);
    }
  }

 private:
  struct Pair {  // in some round, i sees j
    size_t i, j;
    double score;  // lowered by 1e5 if i sees only itself
  };
  std::vector<double> q, k, v, length, x_ij;
  std::vector<Pair> pairs;

  // Where position t of q or y begins.
  static size_t row(const Case& x, int64_t n, size_t t, int64_t width) {
    return static_cast<size_t>(((n / x.h * x.l + static_cast<int64_t>(t)) * x.h + n % x.h) * width);
  }

  void find_scores(const Case& x, int64_t n) {
    const auto l = static_cast<size_t>(x.l), e = static_cast<size_t>(x.e);
    q = doubles(x.q), k = q, v = doubles(x.v);
    length.assign(l, 0);
    x_ij.assign(l * l, 0);
    for (size_t j = 0; j < l; ++j) {
      const size_t at = row(x, n, j, x.e);
      for (size_t c = 0; c < e; ++c) length[j] += q[at + c] * q[at + c];
      length[j] = std::sqrt(length[j]) + 1e-12;
      for (size_t c = 0; c < e; ++c) k[at + c] = q[at + c] / length[j];
    }
    for (size_t i = 0; i < l; ++i)
      for (size_t j = 0; j < l; ++j)
        for (size_t c = 0; c < e; ++c)
          x_ij[i * l + j] += q[row(x, n, i, x.e) + c] * k[row(x, n, j, x.e) + c] / std::sqrt(static_cast<double>(x.e));
  }

  void find_seen(const Case& x, const std::vector<int32_t>& buckets, int64_t n) {
    const auto l = static_cast<size_t>(x.l);
    pairs.clear();
    for (int64_t round = 0; round < x.lsh.rounds; ++round) {
      const int32_t* const bucket = buckets.data() + (round * x.b * x.h + n) * x.l;
      std::vector<size_t> order(l), chunk(l);
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return bucket[a] < bucket[b]; });
      for (size_t place = 0; place < l; ++place) chunk[order[place]] = place / static_cast<size_t>(x.lsh.chunk);
      for (size_t i = 0; i < l; ++i) {
        const size_t before = pairs.size();
        for (size_t j = 0; j < l; ++j)
          if (bucket[i] == bucket[j] && (chunk[j] == chunk[i] || chunk[j] + 1 == chunk[i]) &&
              (x.causal ? j < i : j != i))
            pairs.push_back({i, j, x_ij[i * l + j]});
        if (pairs.size() == before) pairs.push_back({i, i, x_ij[i * l + i] - 1e5});
      }
    }
  }

  // Softmax sums of rounds, weighted by their normalisers, are one softmax sum over the pairs of all rounds.
  void add_sequence(const Case& x, const std::vector<double>& dy, int64_t n) {
    const auto l = static_cast<size_t>(x.l), e = static_cast<size_t>(x.e), m = static_cast<size_t>(x.m);
    std::vector<double> largest(l, -1e300), total(l, 0), d(l, 0), dk(l * e, 0);
    for (const Pair& pair : pairs) largest[pair.i] = std::max(largest[pair.i], pair.score);
    for (const Pair& pair : pairs) total[pair.i] += std::exp(pair.score - largest[pair.i]);
    const auto weight = [&](const Pair& pair) { return std::exp(pair.score - largest[pair.i]) / total[pair.i]; };
    for (const Pair& pair : pairs)
      for (size_t c = 0; c < m; ++c) y[row(x, n, pair.i, x.m) + c] += weight(pair) * v[row(x, n, pair.j, x.m) + c];
    for (size_t i = 0; i < l; ++i)
      for (size_t c = 0; c < m; ++c) d[i] += dy[row(x, n, i, x.m) + c] * y[row(x, n, i, x.m) + c];
    for (const Pair& pair : pairs) {
      const size_t yi = row(x, n, pair.i, x.m), vj = row(x, n, pair.j, x.m);
      const size_t qi = row(x, n, pair.i, x.e), kj = row(x, n, pair.j, x.e);
      double slope = -d[pair.i];
      for (size_t c = 0; c < m; ++c) {
        slope += dy[yi + c] * v[vj + c];
        dv[vj + c] += weight(pair) * dy[yi + c];
      }
      slope *= weight(pair) / std::sqrt(static_cast<double>(x.e));
      for (size_t c = 0; c < e; ++c) {
        dq[qi + c] += slope * k[kj + c];
        dk[pair.j * e + c] += slope * q[qi + c];
      }
    }
    for (size_t j = 0; j < l; ++j) {
      const size_t at = row(x, n, j, x.e);
      double along = 0;
      for (size_t c = 0; c < e; ++c) along += dk[j * e + c] * k[at + c];
      for (size_t c = 0; c < e; ++c) dq[at + c] += (dk[j * e + c] - along * k[at + c]) / length[j];
    }
  }
};

struct Shapes {
  std::array<int64_t, 5> sizes;  // B, L, H, E, M
  Lsh lsh;                       // rounds, buckets, chunk
};
const std::vector<Shapes> shapes = {
    {{1, 1, 1, 1, 1}, {1, 2, 1}},     {{2, 31, 3, 5, 7}, {3, 4, 40}},    {{1, 98, 2, 16, 33}, {1, 8, 29}},
    {{1, 64, 1, 32, 36}, {3, 6, 16}}, {{1, 98, 1, 33, 3}, {3, 2, 29}},   {{1, 70, 1, 8, 16}, {2, 64, 1}},
    {{1, 75, 1, 16, 5}, {2, 4, 70}},  {{1, 34, 1, 256, 200}, {1, 2, 9}}, {{1, 260, 1, 4, 4}, {1, 2, 256}},
    {{3, 40, 1, 70, 6}, {1, 34, 12}},
};

void for_all(const std::vector<Shapes>& some, const std::function<void(const Case&)>& f) {
  for (const Device device : devices())
    for (const Shapes& shape : some)
      for (const bool causal : {false, true}) {
        CAPTURE(shape.sizes[1]);
        CAPTURE(shape.lsh.chunk);
        CAPTURE(causal);
        CAPTURE(name(device));
        f(Case(shape.sizes, shape.lsh, causal, device));
      }
}

// y, and the gradients of q and v for a random cotangent, or for the one given.
struct Results {
  Tensor y, dy, dq, dv;
  explicit Results(const Case& x, const Tensor& cotangent = {}) {
    Tensor q = x.q, v = x.v;
    for (Tensor* t : {&q, &v}) t->set_wants_grad();
    Tape tape;
    y = lsh_attention(q, v, {x.causal, x.lengths}, x.lsh, key);
    dy = cotangent ? cotangent : random_tensor(Shape{y.size(), 1}, 4, -1, 1, y.device());
    const Gradients gradients = tape.backward(weighted_sum(y, dy));
    dq = gradients.of(q);
    dv = gradients.of(v);
  }
};

}  // namespace

TEST_CASE("lsh_hash finds the largest projection, and its rotations are those of the key") {
  for_all(shapes, [](const Case& x) {
    const std::vector<int32_t> buckets = find_buckets(x);
    const std::vector<double> q = doubles(x.q);
    double worst = 0;
    for (int64_t round = 0; round < x.lsh.rounds; ++round)
      for (int64_t n = 0; n < x.b; ++n)
        for (int64_t head = 0; head < x.h; ++head)
          for (int64_t i = 0; i < x.l; ++i) {
            const auto all = projections(x, q.data() + ((n * x.l + i) * x.h + head) * x.e, round, head);
            const int32_t bucket = buckets[static_cast<size_t>(((round * x.b + n) * x.h + head) * x.l + i)];
            REQUIRE(bucket >= 0);
            REQUIRE(bucket < x.lsh.buckets);
            const double largest = *std::max_element(all.begin(), all.end());
            worst = std::max(worst, (largest - all[static_cast<size_t>(bucket)]) / largest);
          }
    CHECK_LE(worst, 1e-4);
  });
}

TEST_CASE("lsh_hash takes the first of equals: a query of zeros is in bucket 0") {
  for (const Device device : devices()) {
    Case x({1, 5, 2, 3, 3}, {2, 8, 4}, true, device);
    x.q = Tensor::full(x.q.shape(), 0, device);
    for (const int32_t bucket : find_buckets(x)) CHECK(bucket == 0);
  }
}

TEST_CASE("lsh_sort is stable, and a query sees its bucket in two chunks") {
  for (const Device device : devices()) {
    //                                     position 0  1  2  3  4  5  6  7  8  9
    const Indices buckets(Shape{10}, std::vector<int32_t>{3, 0, 3, 0, 0, 3, 0, 1, 0, 0}, device);
    for (const bool causal : {false, true}) {
      Indices order(Shape{10}, device), begin(Shape{10}, device), end(Shape{10}, device);
      DISPATCH(device, lsh_sort(order.data(), begin.data(), end.data(), buckets.data(), nullptr,
                                AttentionSizes{1, 10, 10, 1, 1, 1, causal}, Lsh{1, 4, 2}));
      CHECK(order.to_vector() == std::vector<int32_t>{1, 3, 4, 6, 8, 9, 7, 0, 2, 5});
      CHECK(begin.to_vector() == std::vector<int32_t>{0, 0, 0, 0, 2, 2, 6, 7, 7, 7});
      CHECK(end.to_vector() == (causal ? std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
                                       : std::vector<int32_t>{2, 2, 4, 4, 6, 6, 7, 8, 10, 10}));
    }
  }
}

TEST_CASE("lsh_attention and its gradients equal their definitions, causal and not") {
  for_all(shapes, [](const Case& x) {
    const Results results(x);
    const Reference reference(x, find_buckets(x), doubles(results.dy));
    check_close(results.y, reference.y, reduction);
    check_close(results.dq, reference.dq, reduction);
    check_close(results.dv, reference.dv, reduction);
  });
}

TEST_CASE("lsh_attention: padding changes no bit elsewhere, whatever stands there; its results and gradients are 0") {
  for_all({{{3, 70, 2, 5, 33}, {3, 8, 16}}, {{3, 40, 1, 33, 4}, {2, 2, 40}}}, [](Case x) {
    const std::vector<int32_t> lengths{static_cast<int32_t>(x.l), 0, 37};
    x.lengths = Indices(Shape{x.b}, lengths, x.q.device());
    const auto part = [&x](const Tensor& t, int64_t n, int64_t begin, int64_t end) {
      const std::vector<float> all = t.to_vector();
      const int64_t row = t.size() / (x.b * x.l);
      return std::vector<float>(all.begin() + (n * x.l + begin) * row, all.begin() + (n * x.l + end) * row);
    };
    for (Tensor* t : {&x.q, &x.v}) {
      std::vector<float> values = t->to_vector();
      const int64_t row = t->size() / (x.b * x.l);
      for (int64_t n = 0; n < x.b; ++n)
        std::fill(values.begin() + (n * x.l + lengths[static_cast<size_t>(n)]) * row,
                  values.begin() + (n + 1) * x.l * row, NAN);
      *t = Tensor(t->shape(), values, t->device());
    }
    const Results padded(x);
    for (int64_t n = 0; n < x.b; ++n) {
      CAPTURE(n);
      const int64_t length = lengths[static_cast<size_t>(n)];
      for (const Tensor* t : {&padded.y, &padded.dq, &padded.dv})
        for (const float number : part(*t, n, length, x.l)) CHECK(number == 0);
      if (length == 0) continue;
      Case alone({1, length, x.h, x.e, x.m}, x.lsh, x.causal, x.q.device());
      alone.q = Tensor(alone.q.shape(), part(x.q, n, 0, length), x.q.device());
      alone.v = Tensor(alone.v.shape(), part(x.v, n, 0, length), x.q.device());
      const Results expected(alone, Tensor(Shape{alone.v.size(), 1}, part(padded.dy, n, 0, length), x.q.device()));
      CHECK(part(padded.y, n, 0, length) == expected.y.to_vector());
      CHECK(part(padded.dq, n, 0, length) == expected.dq.to_vector());
      CHECK(part(padded.dv, n, 0, length) == expected.dv.to_vector());
    }
  });
}

TEST_CASE("lsh_attention is right where scores are large or queries are zero") {
  for (const Device device : devices()) {
    Case x({1, 70, 1, 4, 3}, {2, 4, 20}, true, device);
    std::vector<float> numbers = x.q.to_vector();
    for (float& number : numbers) number *= 300;
    for (size_t i = 20; i < 40; ++i) numbers[i] = 0;
    x.q = Tensor(x.q.shape(), numbers, device);
    const Results results(x);
    const Reference reference(x, find_buckets(x), doubles(results.dy));
    check_close(results.y, reference.y, 1e-4);  // scores of 300, of which float32 keeps four digits behind the point
    const std::vector<float> dq = results.dq.to_vector();
    CHECK(std::all_of(dq.begin(), dq.end(), [](float number) { return std::isfinite(number); }));
  }
}

// Queries that all rotations turn the same way share one bucket. In one chunk they are then attended to by all of them,
// however many rounds repeat that.
TEST_CASE("lsh_attention with one bucket is softmax attention to the keys before the query") {
  for (const Device device : devices()) {
    Case x({1, 50, 2, 16, 5}, {3, 2, 64}, true, device);
    std::vector<float> q = x.q.to_vector(), k;
    for (size_t i = 0; i < q.size(); ++i) {
      const int64_t head = static_cast<int64_t>(i) / x.e % x.h;
      q[i] /= 10;
      for (int64_t round = 0; round < x.lsh.rounds; ++round)
        q[i] += key.normal(rotation(x, round, head) + i % static_cast<size_t>(x.e));
    }
    x.q = Tensor(x.q.shape(), q, device);
    const std::vector<int32_t> buckets = find_buckets(x);
    REQUIRE(std::set<int32_t>(buckets.begin(), buckets.end()).size() == 1);

    for (size_t i = 0; i < q.size(); i += 16) {
      double length = 0;
      for (size_t c = i; c < i + 16; ++c) length += q[c] * q[c];
      for (size_t c = i; c < i + 16; ++c) k.push_back(static_cast<float>(q[c] / std::sqrt(length)));
    }
    // Query i + 1 beside key i: what is seen up to there is all but itself.
    const auto positions = [&x, device](const std::vector<float>& all, bool last, int64_t width) {
      const int64_t row = x.h * width;
      return Tensor(
          Shape{1, x.l - 1, x.h, width},
          last ? std::vector<float>(all.begin() + row, all.end()) : std::vector<float>(all.begin(), all.end() - row),
          device);
    };
    const std::vector<float> v = x.v.to_vector();
    const Tensor softmax =
        softmax_attention(positions(q, true, x.e), positions(k, false, x.e), positions(v, false, x.m));
    std::vector<double> expected(v.begin(), v.begin() + x.h * x.m);  // position 0 sees itself
    for (const double number : doubles(softmax)) expected.push_back(number);
    check_close(lsh_attention(x.q, x.v, {}, x.lsh, key), expected, reduction);
  }
}

TEST_CASE("lsh_attention's gradients by four-point differences") {
  constexpr double h = 0.02;
  for_all({{{1, 6, 1, 3, 2}, {2, 4, 4}}}, [](const Case& example) {
    // Queries that stay in their buckets if one of their numbers moves by 2 h: no projection moves by more than that
    // times the largest number of the rotations.
    Case x = example;
    std::vector<float> q;
    double widest = 0;
    for (uint64_t i = 0; i < rotation(x, x.lsh.rounds, 0); ++i)
      widest = std::max(widest, std::abs(static_cast<double>(key.normal(i))));
    for (uint64_t seed = 100; static_cast<int64_t>(q.size()) < x.q.size(); ++seed) {
      const std::vector<float> one = random_tensor(Shape{x.e}, seed, -2, 2).to_vector();
      const std::vector<double> query(one.begin(), one.end());
      const int64_t head = static_cast<int64_t>(q.size()) / x.e % x.h;
      bool stays = true;
      for (int64_t round = 0; round < x.lsh.rounds; ++round) {
        std::vector<double> all = projections(x, query.data(), round, head);
        std::sort(all.begin(), all.end(), std::greater<>());
        stays = stays && all[0] - all[1] > 2.1 * 2 * h * widest;
      }
      if (stays) q.insert(q.end(), one.begin(), one.end());
    }
    x.q = Tensor(x.q.shape(), q, x.q.device());
    const std::vector<int32_t> buckets = find_buckets(x);
    REQUIRE(std::set<int32_t>(buckets.begin(), buckets.end()).size() > 2);
    check_gradients([&x](const auto& in) { return lsh_attention(in[0], in[1], {x.causal}, x.lsh, key); }, {x.q, x.v},
                    {.h = h});
  });
}

TEST_CASE("the number of threads changes nothing in lsh_attention") {
  const Case x({2, 70, 3, 8, 5}, {3, 4, 9}, true, Device::cpu);
  const auto all = [&x] {
    const Results results(x);
    return std::vector{results.y.to_vector(), results.dq.to_vector(), results.dv.to_vector()};
  };
  const auto expected = all();
  for (const int some : {1, 2, 5}) {
    const OmpThreads threads(some);
    CHECK(all() == expected);
  }
}

TEST_CASE("lsh_attention's memory grows with L, not with its square") {
  for (const Device device : devices()) {
    const auto peak = [device](int64_t l) {
      const Case x({1, l, 1, 8, 8}, {2, 4, 16}, true, device);
      reset_peak(device);
      const int64_t before = memory_use(device).live;
      const Results results(x);
      return memory_use(device).peak - before;
    };
    CHECK_LE(peak(800), peak(200) * 42 / 10);
  }
}

TEST_CASE("lsh_attention names what does not fit") {
  const auto tensor = [](Shape shape) { return Tensor::full(shape, 0); };
  const Tensor q = tensor({2, 5, 3, 4}), v = tensor({2, 5, 3, 7});
  check_fails([&] { lsh_attention(tensor({2, 5, 12}), v, {}, {}, key); }, "lsh_attention: q [2,5,12] is not [B,L,H,E]");
  check_fails(
      [&] {
        lsh_attention(q, tensor({2, 6, 3, 7}), {}, {}, key);
      },
      "lsh_attention: v [2,6,3,7] does not match k [2,5,3,4]");
  check_fails(
      [&] {
        lsh_attention(q, tensor({2, 5, 3, 257}), {}, {}, key);
      },
      "lsh_attention: q [2,5,3,4] and v [2,5,3,257] must have from 1 to 256 columns");
  check_fails([&] { lsh_attention(q, v, {}, {0, 32, 32}, key); }, "lsh_attention: rounds must be at least 1, not 0");
  for (const int64_t buckets : {0, 7, 4098})
    check_fails(
        [&] {
          lsh_attention(q, v, {}, {4, buckets, 32}, key);
        },
        "lsh_attention: buckets must be an even number from 2 to 4096, not " + std::to_string(buckets));
  for (const int64_t chunk : {0, 257})
    check_fails(
        [&] {
          lsh_attention(q, v, {}, {4, 32, chunk}, key);
        },
        "lsh_attention: chunk must be from 1 to 256, not " + std::to_string(chunk));
}

TEST_CASE("lsh_attention: running out of memory is an error, forward and backward") {
  const Tensor q = random_tensor(Shape{1, 2, 1, 256}, 1).set_wants_grad();
  check_out_of_memory([&] { lsh_attention(q, q, {}, {1, 2, 256}, Key{1}); });
  Tape tape;
  const Tensor loss = sum(lsh_attention(q, q, {}, {1, 2, 256}, Key{1}));
  check_out_of_memory([&] { tape.backward(loss); });
}
