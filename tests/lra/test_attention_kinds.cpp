// The definitions of Long Range Arena's kinds of attention; tests/test_attention_kinds.cpp has what holds for all
// kinds.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>

#include "tests/attention_kinds.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// Which keys each query sees, as rows of 0 and 1: queries and keys are 0, so all weights are equal, and values tell the
// keys apart.
std::vector<std::vector<int>> seen_keys(const AttentionConfig& config, bool causal, int64_t l, Device device,
                                        Key fixed = Key{5}) {
  const Tensor zero = Tensor::full(Shape{1, l, 1, e}, 0, device);
  std::vector<float> identity(static_cast<size_t>(l * l), 0.0f);
  for (int64_t j = 0; j < l; ++j) identity[static_cast<size_t>(j * (l + 1))] = 1;
  const auto layer = make_attention(config, {1, e, causal, e, l}, {fixed}, device);
  const std::vector<float> y = (*layer)(zero, zero, Tensor(Shape{1, l, 1, l}, identity, device),
                                        {.input = Tensor::full(Shape{1, l, e}, 0, device)})
                                   .to_vector();
  std::vector<std::vector<int>> rows(static_cast<size_t>(l));
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < rows.size(); ++j) rows[i].push_back(y[i * rows.size() + j] > 0);
  return rows;
}

// Softmax attention with dense weights in double: query i of sequence n = b H + h sees keys_of(n, i) [keys,E] with
// values_of(n, i) [keys,E].
using RowsOf = std::function<std::vector<double>(int64_t n, int64_t i)>;
std::vector<double> dense_attention(const Tensor& q, const RowsOf& keys_of, const RowsOf& values_of) {
  const std::vector<double> queries = doubles(q);
  std::vector<double> y(queries.size(), 0);
  for (size_t row = 0; row < y.size() / e; ++row) {  // (b L + i) H + h
    const auto position = static_cast<int64_t>(row / heads);
    const int64_t n = position / length * heads + static_cast<int64_t>(row % heads);
    const std::vector<double> own_keys = keys_of(n, position % length), own_values = values_of(n, position % length);
    std::vector<double> weights;
    double total = 0;
    for (size_t j = 0; j < own_keys.size() / e; ++j) {
      double dot = 0;
      for (size_t c = 0; c < e; ++c) dot += queries[row * e + c] * own_keys[j * e + c];
      total += weights.emplace_back(std::exp(dot / std::sqrt(static_cast<double>(e))));
    }
    for (size_t j = 0; j < weights.size(); ++j)
      for (size_t c = 0; c < e; ++c) y[row * e + c] += weights[j] / total * own_values[j * e + c];
  }
  return y;
}

}  // namespace

TEST_CASE("performer: --redraw draws features anew at each training step") {
  const Tensor q = values(1, Device::cpu), k = values(2, Device::cpu), v = values(3, Device::cpu);
  const auto run = [&](const std::string& redraw, std::optional<Key> key = {}) {
    const AttentionConfig config{"performer", {{"redraw", redraw}}};
    return (*make_attention(config, shape(true), layer_keys, Device::cpu))(q, k, v, {.key = key}).to_vector();
  };
  CHECK(run("yes", Key{9}) != run("yes"));
  CHECK(run("no", Key{9}) == run("yes"));
}

TEST_CASE("performer: its decode state has the same size at any length") {
  const auto layer = make_attention({"performer", {{"features", int64_t{16}}}}, {2, 8, true}, layer_keys, Device::cpu);
  for (const int64_t capacity : {10, 1000})
    CHECK(layer->decode({1, capacity, Device::cpu})->bytes() == 2 * (16 * 8 + 16) * 4);
}

TEST_CASE("attention kinds: local and sparse see the keys of their definitions") {
  constexpr int64_t l = 23;
  for (const Device device : devices())
    for (const bool causal : {false, true}) {
      const auto local = seen_keys({"local", {{"local-block", int64_t{5}}}}, causal, l, device);
      const auto sparse = seen_keys({"sparse", {{"stride", int64_t{6}}, {"summary", int64_t{4}}}}, causal, l, device);
      for (int64_t i = 0; i < l; ++i)
        for (int64_t j = 0; j < l; ++j) {
          const bool visible = !causal || j <= i;
          CHECK_EQ(local[static_cast<size_t>(i)][static_cast<size_t>(j)], visible && i / 5 == j / 5);
          CHECK_EQ(sparse[static_cast<size_t>(i)][static_cast<size_t>(j)], visible && (i / 6 == j / 6 || j % 6 >= 2));
        }
    }
}

TEST_CASE("attention kinds: bigbird sees a window, global blocks and random blocks") {
  constexpr int64_t block = 2, blocks = 16, l = block * blocks - 1;
  const AttentionConfig config{"bigbird", {{"bigbird-block", block}, {"bigbird-random", int64_t{2}}}};
  for (const bool causal : {false, true}) {
    const auto seen = seen_keys(config, causal, l, Device::cpu);
    for (int64_t i = 0; i < l; ++i) {
      const int64_t r = i / block, last = causal ? r : blocks - 1;
      const bool is_global = r == 0 || (!causal && r == last);
      int64_t always = 0, random = 0;  // blocks; a block is seen or not as a whole, but for later keys
      for (int64_t c = 0; c < blocks; ++c) {
        const bool whole = c <= last && (is_global || std::abs(c - r) <= 1 || c == 0 || (!causal && c == last));
        always += whole;
        int64_t keys = 0;
        for (int64_t j = c * block; j < std::min(l, (c + 1) * block); ++j)
          keys += seen[static_cast<size_t>(i)][static_cast<size_t>(j)];
        const int64_t end = std::min(causal ? i + 1 : l, (c + 1) * block);
        const int64_t all = std::max<int64_t>(0, end - c * block);
        if (whole)
          CHECK_EQ(keys, all);
        else
          CHECK((keys == 0 || keys == all));
        random += !whole && keys > 0;
      }
      CHECK_EQ(random, std::min<int64_t>(2, last + 1 - always));
    }
  }
  // The random blocks are drawn anew for each block of queries.
  const auto full = seen_keys(config, false, l, Device::cpu);
  std::set<std::vector<int64_t>> drawn;
  for (int64_t r = 4; r < blocks - 4; ++r) {  // those that can be drawn for all of these
    std::vector<int64_t> far;
    for (const int64_t c : std::array<int64_t, 4>{1, 2, blocks - 3, blocks - 2})
      if (full[static_cast<size_t>(r * block)][static_cast<size_t>(c * block)] > 0) far.push_back(c);
    drawn.insert(far);
  }
  CHECK(drawn.size() > 2);
  CHECK(seen_keys(config, false, l, Device::cpu) == seen_keys(config, false, l, Device::cpu));
  CHECK(seen_keys(config, false, l, Device::cpu) != seen_keys(config, false, l, Device::cpu, Key{6}));
  const auto whole = seen_keys(config, true, l, Device::cpu), prefix = seen_keys(config, true, 20, Device::cpu);
  for (size_t i = 0; i < prefix.size(); ++i)  // decoding computes prefixes
    CHECK(std::vector(whole[i].begin(), whole[i].begin() + 20) == prefix[i]);
}

TEST_CASE("attention kinds: longformer is softmax attention in a window, with global tokens") {
  struct Sizes {
    int64_t l, window, global;
  };
  for (const Device device : devices())
    for (const Sizes& s : {Sizes{150, 40, 3}, {210, 140, 66}, {150, 2, 0}, {5, 2, 200}}) {
      CAPTURE(name(device));
      CAPTURE(s.l);
      const AttentionConfig config{"longformer", {{"longformer-window", s.window}, {"longformer-global", s.global}}};
      constexpr int64_t width = 3;
      const auto layer = make_attention(config, {heads, e, false, width, s.l}, layer_keys, device);
      const auto random = [&](uint64_t seed) {
        return random_tensor(Shape{batch, s.l, heads, e}, seed, -2, 2, device);
      };
      const Tensor q = random(1), k = random(2), v = random(3);
      const Tensor x = random_tensor(Shape{batch, s.l, width}, 4, -2, 2, device);
      const std::vector<int32_t> lengths{static_cast<int32_t>(s.l * 2 / 3), static_cast<int32_t>(s.l)};

      const Parameters own = layer->parameters();
      CHECK_EQ(own.size(), s.global > 0 ? 6 : 0);
      const auto projected = [&](size_t number) {
        const std::vector<double> w = doubles(own[2 * number].tensor), b = doubles(own[2 * number + 1].tensor);
        const std::vector<double> in = doubles(x);
        std::vector<double> y;
        for (size_t row = 0; row < in.size() / width; ++row)
          for (size_t o = 0; o < b.size(); ++o) {
            y.push_back(b[o]);
            for (size_t c = 0; c < width; ++c) y.back() += w[o * width + c] * in[row * width + c];
          }
        return y;
      };
      const std::vector<std::vector<double>> ordinary{doubles(q), doubles(k), doubles(v)};
      std::vector<std::vector<double>> of_global;
      for (size_t number = 0; number < own.size() / 2; ++number) of_global.push_back(projected(number));

      std::vector<double> expected(static_cast<size_t>(q.size()), 0);
      for (int64_t n = 0; n < batch * heads; ++n)
        for (int64_t i = 0; i < s.l; ++i) {
          const auto& from = i < s.global ? of_global : ordinary;
          const auto at = [&](int64_t position) {
            return static_cast<size_t>(((n / heads * s.l + position) * heads + n % heads) * e);
          };
          std::vector<std::pair<size_t, double>> weights;
          double total = 0;
          for (int64_t j = 0; j < lengths[static_cast<size_t>(n / heads)]; ++j) {
            if (i >= s.global && j >= s.global && std::abs(i - j) > s.window / 2) continue;
            double dot = 0;
            for (size_t c = 0; c < e; ++c) dot += from[0][at(i) + c] * from[1][at(j) + c];
            total += weights.emplace_back(at(j), std::exp(dot / std::sqrt(static_cast<double>(e)))).second;
          }
          for (const auto& [j, weight] : weights)
            for (size_t c = 0; c < e; ++c) expected[at(i) + c] += weight / total * from[2][j + c];
        }
      const Tensor y = (*layer)(q, k, v, {.lengths = Indices(Shape{batch}, lengths, device), .input = x});
      check_close(y, expected, reduction);
    }
}

TEST_CASE("attention kinds: causal longformer sees the left half of its window, and decodes in constant memory") {
  const AttentionConfig config{"longformer", {{"longformer-window", int64_t{40}}}};
  for (const Device device : devices()) {
    const auto seen = seen_keys(config, true, 150, device);
    for (int64_t i = 0; i < 150; ++i)
      for (int64_t j = 0; j < 150; ++j)
        CHECK_EQ(seen[static_cast<size_t>(i)][static_cast<size_t>(j)], j <= i && i - j <= 20);

    const auto layer = make_attention(config, shape(true), layer_keys, device);
    CHECK(layer->parameters().empty());
    CHECK_EQ(layer->decode({batch, 1000, device})->bytes(), 2 * batch * heads * e * 21 * 4);
    CHECK_EQ(layer->decode({batch, 10, device})->bytes(), 2 * batch * heads * e * 10 * 4);
  }
}

TEST_CASE("attention kinds: linformer is softmax attention to learned sums of keys and values") {
  for (const Device device : devices())
    for (const bool padded : {false, true}) {
      const AttentionConfig config{"linformer", {{"linformer-rank", int64_t{3}}}};
      const auto layer = make_attention(config, shape(false), layer_keys, device);
      const Tensor projection = layer->parameters().at(0).tensor;
      CHECK_EQ(projection.shape(), Shape{length, 3});
      const std::vector<double> p = doubles(projection);
      const std::vector<int32_t> lengths{7, static_cast<int32_t>(length)};
      const Tensor q = queries(1, device), k = queries(2, device), v = values(3, device);
      const auto sums_of = [&](const Tensor& x) -> RowsOf {
        return [&, numbers = doubles(x)](int64_t n, int64_t) {
          std::vector<double> sums(3 * e, 0);
          const int64_t b = n / heads, end = padded ? lengths[static_cast<size_t>(b)] : length;
          for (int64_t j = 0; j < end; ++j)
            for (int64_t r = 0; r < 3; ++r)
              for (int64_t c = 0; c < e; ++c)
                sums[static_cast<size_t>(r * e + c)] +=
                    p[static_cast<size_t>(j * 3 + r)] *
                    numbers[static_cast<size_t>(((b * length + j) * heads + n % heads) * e + c)];
          return sums;
        };
      };
      const Tensor y = (*layer)(q, k, v, {.lengths = padded ? Indices(Shape{batch}, lengths, device) : Indices()});
      check_close(y, dense_attention(q, sums_of(k), sums_of(v)), reduction);
    }
}

TEST_CASE("attention kinds: sinkhorn is softmax attention to the own block and to a mixture of all blocks") {
  constexpr int64_t block = 4, blocks = 4;
  for (const Device device : devices())
    for (const bool padded : {false, true}) {
      const AttentionConfig config{"sinkhorn", {{"sinkhorn-block", block}, {"sinkhorn-iterations", int64_t{3}}}};
      const auto layer = make_attention(config, shape(false), layer_keys, device);
      const std::vector<double> w = doubles(layer->parameters().at(0).tensor);
      CHECK_EQ(layer->parameters().at(0).tensor.shape(), Shape{blocks, e});
      const std::vector<int32_t> lengths{7, static_cast<int32_t>(length)};
      const Tensor q = queries(1, device), k = queries(2, device), v = values(3, device);
      const std::vector<double> all_keys = doubles(k);
      const auto end_of = [&](int64_t n) -> int64_t {
        return padded ? lengths[static_cast<size_t>(n / heads)] : length;
      };
      const auto at = [](int64_t n, int64_t j, int64_t c) {
        return static_cast<size_t>(((n / heads * length + j) * heads + n % heads) * e + c);
      };
      // P of sequence n: blocks that are not padding alone.
      const auto mixture = [&](int64_t n) {
        const int64_t seen = (end_of(n) + block - 1) / block;
        std::vector<std::vector<double>> p(blocks, std::vector<double>(blocks, 0));
        for (int64_t r = 0; r < seen; ++r)
          for (int64_t c = 0; c < seen; ++c) {
            double logit = 0;
            for (int64_t j = r * block; j < std::min(end_of(n), (r + 1) * block); ++j)
              for (int64_t i = 0; i < e; ++i) logit += w[static_cast<size_t>(c * e + i)] * all_keys[at(n, j, i)];
            p[static_cast<size_t>(r)][static_cast<size_t>(c)] = std::exp(logit);
          }
        for (int step = 0; step < 6; ++step)
          for (size_t r = 0; r < static_cast<size_t>(seen); ++r) {
            double total = 0;
            for (size_t c = 0; c < blocks; ++c) total += step % 2 == 0 ? p[r][c] : p[c][r];
            for (size_t c = 0; c < blocks; ++c) (step % 2 == 0 ? p[r][c] : p[c][r]) /= total;
          }
        return p;
      };
      const auto seen_of = [&](const Tensor& x) -> RowsOf {
        return [&, numbers = doubles(x)](int64_t n, int64_t i) {
          const int64_t r = i / block;
          const auto p = mixture(n);
          std::vector<double> rows(block * e, 0);
          for (int64_t j = 0; j < end_of(n); ++j)
            for (int64_t c = 0; c < e; ++c)
              rows[static_cast<size_t>(j % block * e + c)] +=
                  p[static_cast<size_t>(r)][static_cast<size_t>(j / block)] * numbers[at(n, j, c)];
          for (int64_t j = r * block; j < std::min(end_of(n), (r + 1) * block); ++j)
            for (int64_t c = 0; c < e; ++c) rows.push_back(numbers[at(n, j, c)]);
          return rows;
        };
      };
      const Tensor y = (*layer)(q, k, v, {.lengths = padded ? Indices(Shape{batch}, lengths, device) : Indices()});
      check_close(y, dense_attention(q, seen_of(k), seen_of(v)), reduction);
    }
}

TEST_CASE("attention kinds: linformer refuses sequences that are longer than its longest") {
  const auto layer = make_attention({"linformer"}, {heads, e, false, heads * e, length - 1}, layer_keys, Device::cpu);
  check_fails([&] { (*layer)(queries(1, Device::cpu), queries(2, Device::cpu), values(3, Device::cpu), {}); },
              "linformer: a sequence of 13 positions is longer than the layer's longest, 12");
  check_fails(
      [] {
        make_attention({"linformer"}, {heads, e, false}, layer_keys, Device::cpu);
      },
      "linformer: the longest sequence is 0 positions; it must be known and positive");
  check_fails([] { make_attention({"linformer"}, shape(true), layer_keys, Device::cpu); },
              "attention: linformer has no causal form");
}

TEST_CASE("attention kinds: settings that do not fit together are refused") {
  const auto make = [](const std::string& kind, const SettingValues& values) {
    make_attention({kind, values}, shape(true), layer_keys, Device::cpu);
  };
  check_fails(
      [&] {
        make("sparse", {{"stride", int64_t{10}}, {"summary", int64_t{10}}});
      },
      "--summary 10 is not less than --stride 10");
  check_fails([&] { make("bigbird", {{"bigbird-window", int64_t{2}}}); }, "--bigbird-window 2 is even");
  check_fails([&] { make("longformer", {{"longformer-window", int64_t{3}}}); }, "--longformer-window 3 is odd");
}
