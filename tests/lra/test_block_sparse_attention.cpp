#include <algorithm>

#include "ops/lra/attention.h"
#include "ops/reductions.h"
#include "ops/softmax_attention.h"
#include "tests/check.h"
#include "tests/memory_limit.h"

using namespace runnel;
using namespace runnel::test;

namespace {

using Lists = std::vector<std::vector<int32_t>>;

struct Case {
  int64_t b, l, s, h, e, m, query_block, key_block;
  bool causal;
  Lists seen;  // drawn at random, that of block 1 empty
  Tensor q, k, v;
  Indices lengths;            // or empty
  std::vector<int32_t> ends;  // the same, or the number of keys
  std::optional<Band> band;
  bool by_length;
  Case(const std::array<int64_t, 8>& sizes, bool is_causal, bool padded, Device device, bool banded = false,
       bool of_length = false)
      : b(sizes[0]),
        l(sizes[1]),
        s(is_causal ? sizes[1] : sizes[2]),
        h(sizes[3]),
        e(sizes[4]),
        m(sizes[5]),
        query_block(sizes[6]),
        key_block(sizes[7]),
        causal(is_causal),
        q(random_tensor(Shape{b, l, h, e}, 1, -2, 2, device)),
        k(random_tensor(Shape{b, s, h, e}, 2, -2, 2, device)),
        v(random_tensor(Shape{b, s, h, m}, 3, -2, 2, device)),
        by_length(of_length) {
    if (banded) band = Band{.reach = s / 6, .global = s / 12};
    const Key key{11};
    uint64_t draw = 0;
    for (int64_t n = 0; n <= (by_length ? key_blocks() : 0); ++n)
      for (int64_t r = 0; r < query_blocks(); ++r) {
        seen.emplace_back();
        for (int64_t c = 0; c < key_blocks(); ++c)
          if (key.below(draw++, 3) == 0 && r != 1) seen.back().push_back(static_cast<int32_t>(c));
      }
    ends.assign(static_cast<size_t>(b), static_cast<int32_t>(s));
    if (!padded) return;
    for (int64_t n = 0; n < b; ++n)  // none, all, and what is between
      ends[static_cast<size_t>(n)] = static_cast<int32_t>(n == 0 ? 0 : n == 1 ? s : s - s / (n + 1));
    lengths = Indices(Shape{b}, ends, device);
  }
  int64_t query_blocks() const { return (l + query_block - 1) / query_block; }
  int64_t key_blocks() const { return (s + key_block - 1) / key_block; }
  BlockPattern pattern() const { return {query_block, key_block, seen, key_blocks(), q.device(), band, by_length}; }
  AttentionMask mask() const { return {causal, lengths}; }
  Tensor run(const std::vector<Tensor>& in) const {
    return block_sparse_attention(in[0], in[1], in[2], pattern(), mask());
  }
  bool sees(int64_t n, int64_t i, int64_t j) const {
    const int64_t end = ends[static_cast<size_t>(n)];
    const int64_t first = by_length ? (end + key_block - 1) / key_block * query_blocks() : 0;
    const auto& list = seen[static_cast<size_t>(first + i / query_block)];
    return std::count(list.begin(), list.end(), j / key_block) > 0 && (!causal || j <= i) && j < end &&
           (!band || std::abs(i - j) <= band->reach || j < band->global);
  }
};

// By the definition with a dense mask, in double: y, and the gradients of q, k and v for the cotangent dy.
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
          const auto row = [&](int64_t t, int64_t length, int64_t width) {
            return static_cast<size_t>(((n * length + t) * x.h + head) * width);
          };
          const size_t qi = row(i, x.l, x.e), yi = row(i, x.l, x.m);
          std::vector<double> p(static_cast<size_t>(x.s), -INFINITY);
          double largest = -INFINITY, total = 0, d = 0;
          for (int64_t j = 0; j < x.s; ++j) {
            if (!x.sees(n, i, j)) continue;
            double dot = 0;
            for (size_t c = 0; c < static_cast<size_t>(x.e); ++c) dot += q[qi + c] * k[row(j, x.s, x.e) + c];
            p[static_cast<size_t>(j)] = dot * scale;
            largest = std::max(largest, dot * scale);
          }
          if (largest == -INFINITY) continue;  // sees no key: zeros
          for (double& weight : p) total += weight = std::exp(weight - largest);
          for (double& weight : p) weight /= total;
          for (size_t c = 0; c < static_cast<size_t>(x.m); ++c) {
            for (int64_t j = 0; j < x.s; ++j) y[yi + c] += p[static_cast<size_t>(j)] * v[row(j, x.s, x.m) + c];
            d += dy[yi + c] * y[yi + c];
          }
          for (int64_t j = 0; j < x.s; ++j) {
            const size_t kj = row(j, x.s, x.e), vj = row(j, x.s, x.m);
            const double weight = p[static_cast<size_t>(j)];
            double slope = -d;
            for (size_t c = 0; c < static_cast<size_t>(x.m); ++c) {
              slope += dy[yi + c] * v[vj + c];
              dv[vj + c] += weight * dy[yi + c];
            }
            for (size_t c = 0; c < static_cast<size_t>(x.e); ++c) {
              dq[qi + c] += weight * slope * scale * k[kj + c];
              dk[kj + c] += weight * slope * scale * q[qi + c];
            }
          }
        }
  }
};

// B, L, S, H, E, M, positions of a block of queries and of keys
const std::vector<std::array<int64_t, 8>> shapes = {{1, 1, 1, 1, 1, 1, 1, 1},        {2, 31, 33, 3, 5, 7, 4, 6},
                                                    {3, 33, 100, 1, 1, 31, 10, 50},  {1, 130, 97, 2, 33, 40, 50, 10},
                                                    {1, 130, 140, 1, 32, 32, 70, 3}, {2, 64, 64, 2, 32, 32, 64, 64}};

void for_all(const std::vector<std::array<int64_t, 8>>& sizes, const std::function<void(const Case&)>& f) {
  for (const Device device : devices())
    for (const auto& shape : sizes)
      for (const bool causal : {false, true})
        for (const bool padded : {false, true})
          for (const bool banded : {false, true})
            for (const bool by_length : {false, true}) {
              if (by_length && (banded || !padded)) continue;
              CAPTURE(shape[1]);
              CAPTURE(shape[6]);
              CAPTURE(causal);
              CAPTURE(padded);
              CAPTURE(banded);
              CAPTURE(by_length);
              CAPTURE(name(device));
              f(Case(shape, causal, padded, device, banded, by_length));
            }
}

Lists diagonal(int64_t blocks) {
  Lists lists;
  for (int32_t r = 0; r < blocks; ++r) lists.push_back({r});
  return lists;
}

}  // namespace

TEST_CASE("block_sparse_attention and its gradients equal softmax attention with a dense mask") {
  for_all(shapes, [](const Case& x) {
    Tensor q = x.q, k = x.k, v = x.v;
    for (Tensor* t : {&q, &k, &v}) t->set_wants_grad();
    Tape tape;
    const Tensor y = x.run({q, k, v});
    const Tensor dy = random_tensor(Shape{y.size(), 1}, 4, -1, 1, y.device());
    const Gradients gradients = tape.backward(weighted_sum(y, dy));
    const Reference reference(x, doubles(dy));
    check_close(y, reference.y, reduction);
    check_close(gradients.of(q), reference.dq, reduction);
    check_close(gradients.of(k), reference.dk, reduction);
    check_close(gradients.of(v), reference.dv, reduction);
  });
}

TEST_CASE("block_sparse_attention: gradients by four-point differences") {
  for_all({{2, 11, 9, 2, 4, 3, 4, 3}}, [](const Case& x) {
    check_gradients([&x](const auto& in) { return x.run(in); }, {x.q, x.k, x.v});
  });
}

TEST_CASE("block_sparse_attention to all blocks equals softmax_attention") {
  for (const Device device : devices()) {
    const Case x({2, 70, 70, 2, 8, 5, 16, 16}, true, true, device);
    Lists all;
    for (int r = 0; r < 5; ++r) all.push_back({0, 1, 2, 3, 4});
    const Tensor y = block_sparse_attention(x.q, x.k, x.v, {16, 16, all, 5, device}, x.mask());
    check_close(y, doubles(softmax_attention(x.q, x.k, x.v, x.mask())), reduction);
  }
}

TEST_CASE("block_sparse_attention in a band that hides nothing gives the same bytes as without a band") {
  for (const Device device : devices())
    for (const Band band : {Band{.reach = 139}, Band{.reach = 0, .global = 140}}) {
      Case x({2, 140, 140, 1, 8, 5, 70, 30}, false, true, device);
      const std::vector<float> expected = x.run({x.q, x.k, x.v}).to_vector();
      x.band = band;
      CHECK(x.run({x.q, x.k, x.v}).to_vector() == expected);
    }
}

TEST_CASE("block_sparse_attention: the number of threads changes nothing") {
  const Case x({2, 130, 97, 2, 33, 40, 50, 10}, false, true, Device::cpu);
  const auto all = [&x] {
    Tensor q = x.q, k = x.k, v = x.v;
    for (Tensor* t : {&q, &k, &v}) t->set_wants_grad();
    Tape tape;
    const Tensor y = x.run({q, k, v});
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

TEST_CASE("block_sparse_attention: memory grows with the listed pairs of blocks, not with the square of L") {
  for (const Device device : devices()) {
    const auto peak = [device](int64_t l) {
      const auto input = [&](uint64_t seed) {
        return random_tensor(Shape{1, l, 1, 8}, seed, -1, 1, device).set_wants_grad();
      };
      const Tensor q = input(1), k = input(2), v = input(3);
      reset_peak(device);
      const int64_t before = memory_use(device).live;
      Tape tape;
      tape.backward(sum(block_sparse_attention(q, k, v, {8, 8, diagonal(l / 8), l / 8, device})));
      return memory_use(device).peak - before;
    };
    CHECK_LE(peak(800), peak(200) * 42 / 10);
  }
}

TEST_CASE("block_sparse_attention names what does not match") {
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
  check_fails([&] { block_sparse_attention(x, x, x, pattern({{0}})); },
              "block_sparse_attention: a pattern of 1 blocks of 5 does not match q [2,10,1,4]");
  check_fails(
      [&] {
        block_sparse_attention(x, x, x, pattern({{0}, {1}}, 5, 3));
      },
      "block_sparse_attention: a pattern of 3 blocks of 5 does not match k [2,10,1,4]");
  check_fails(
      [&] {
        block_sparse_attention(x, x, Tensor::full({2, 9, 1, 4}, 0), pattern({{0}, {1}}));
      },
      "block_sparse_attention: v [2,9,1,4] does not match k [2,10,1,4]");
}

TEST_CASE("block_sparse_attention: running out of memory is an error, forward and backward") {
  const Tensor q = random_tensor(Shape{1, 64, 1, 4096}, 1).set_wants_grad();
  const BlockPattern pattern(32, 32, diagonal(2), 2, Device::cpu);
  check_out_of_memory([&] { block_sparse_attention(q, q, q, pattern); });
  Tape tape;
  const Tensor loss = sum(block_sparse_attention(q, q, q, pattern));
  check_out_of_memory([&] { tape.backward(loss); });
}
