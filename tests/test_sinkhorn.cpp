// block_sums, sinkhorn, mix_blocks.
#include <algorithm>

#include "ops/approximate_attention.h"
#include "ops/linear.h"
#include "ops/reductions.h"
#include "tests/check.h"
#include "tests/memory_limit.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Case {
  int64_t b, s, h, e, block;
  int64_t blocks = (s + block - 1) / block;
  std::vector<int32_t> own_lengths;
  Indices lengths;  // or empty
  Case(const std::array<int64_t, 5>& sizes, bool padded, Device device)
      : b(sizes[0]), s(sizes[1]), h(sizes[2]), e(sizes[3]), block(sizes[4]) {
    for (int64_t n = 0; n < b; ++n)  // none, all, and what is between
      own_lengths.push_back(static_cast<int32_t>(!padded || n == 2 ? s : n == 1 ? 0 : s - s / (n + 2)));
    if (padded) lengths = Indices(Shape{b}, own_lengths, device);
  }
  int64_t length(int64_t n) const { return own_lengths[static_cast<size_t>(n)]; }
  int64_t seen_blocks(int64_t n) const { return (length(n) + block - 1) / block; }
  size_t at(int64_t n, int64_t j, int64_t head, int64_t c, int64_t positions) const {
    return static_cast<size_t>(((n * positions + j) * h + head) * e + c);
  }
  size_t at_p(int64_t n, int64_t head, int64_t r, int64_t c) const {
    return static_cast<size_t>(((n * h + head) * blocks + r) * blocks + c);
  }
};

// B, S, H, E, positions of a block
const std::vector<std::array<int64_t, 5>> shapes = {{1, 1, 1, 1, 1},    {3, 13, 2, 3, 4},   {4, 33, 1, 32, 1},
                                                    {3, 130, 2, 33, 3}, {2, 100, 2, 8, 64}, {2, 140, 1, 40, 70}};

void for_all(const std::function<void(const Case&, Device)>& f) {
  for (const Device device : devices())
    for (const auto& sizes : shapes)
      for (const bool padded : {false, true}) {
        CAPTURE(sizes[1]);
        CAPTURE(sizes[4]);
        CAPTURE(padded);
        CAPTURE(name(device));
        f(Case(sizes, padded, device), device);
      }
}

// e^logits, normalised by the definition.
std::vector<double> balanced(const Case& n, const Tensor& logits, int iterations) {
  const auto x = doubles(logits);
  const int64_t columns = logits.shape()[3];
  std::vector<double> p(static_cast<size_t>(n.b * n.h * n.blocks * n.blocks), 0);
  for (int64_t b = 0; b < n.b; ++b)
    for (int64_t head = 0; head < n.h; ++head) {
      const int64_t seen = n.seen_blocks(b);
      const auto cell = [&](int64_t r, int64_t c) -> double& { return p[n.at_p(b, head, r, c)]; };
      for (int64_t r = 0; r < seen; ++r)
        for (int64_t c = 0; c < seen; ++c)
          cell(r, c) = std::exp(x[static_cast<size_t>(((b * n.blocks + r) * n.h + head) * columns + c)]);
      for (int step = 0; step < 2 * iterations; ++step)
        for (int64_t i = 0; i < seen; ++i) {
          const auto line = [&](int64_t j) -> double& { return step % 2 == 0 ? cell(i, j) : cell(j, i); };
          double total = 0;
          for (int64_t j = 0; j < seen; ++j) total += line(j);
          for (int64_t j = 0; j < seen; ++j) line(j) /= total;
        }
    }
  return p;
}

}  // namespace

TEST_CASE("block_sums and its gradient equal the definition") {
  for_all([](const Case& n, Device device) {
    Tensor x = random_tensor(Shape{n.b, n.s, n.h, n.e}, 1, -1, 1, device);
    x.set_wants_grad();
    const Tensor dy = random_tensor(Shape{n.b, n.blocks, n.h, n.e}, 2, -1, 1, device);
    Tape tape;
    const Tensor y = block_sums(x, n.block, n.lengths);
    const Gradients gradients = tape.backward(weighted_sum(y, dy));
    const auto numbers = doubles(x), cotangent = doubles(dy);
    std::vector<double> sums(cotangent.size(), 0), dx(numbers.size(), 0);
    for (int64_t b = 0; b < n.b; ++b)
      for (int64_t j = 0; j < n.length(b); ++j)
        for (int64_t head = 0; head < n.h; ++head)
          for (int64_t c = 0; c < n.e; ++c) {
            sums[n.at(b, j / n.block, head, c, n.blocks)] += numbers[n.at(b, j, head, c, n.s)];
            dx[n.at(b, j, head, c, n.s)] = cotangent[n.at(b, j / n.block, head, c, n.blocks)];
          }
    check_close(y, sums, reduction);
    check_close(gradients.of(x), dx, exact);
  });
}

TEST_CASE("sinkhorn equals the definition: rows and columns are normalised in turn") {
  for_all([](const Case& n, Device device) {
    for (const int iterations : {1, 3}) {
      const Tensor logits = random_tensor(Shape{n.b, n.blocks, n.h, n.blocks + 2}, 1, -3, 3, device);
      check_close(sinkhorn(logits, iterations, n.block, n.lengths), balanced(n, logits, iterations), reduction);
    }
  });
}

TEST_CASE("sinkhorn: after many iterations, rows and columns of blocks that are not padding sum to 1") {
  const Case n({3, 26, 2, 1, 2}, true, Device::cpu);
  for (const Device device : devices()) {
    // Logits whose exponentials overflow, or are all 0.
    for (const float offset : {-200.0f, 0.0f, 200.0f}) {
      const Tensor logits = random_tensor(Shape{n.b, n.blocks, n.h, n.blocks}, 1, offset - 2, offset + 2, device);
      const auto p = doubles(sinkhorn(logits, 40, n.block, n.lengths.to(device)));
      for (int64_t b = 0; b < n.b; ++b)
        for (int64_t head = 0; head < n.h; ++head)
          for (int64_t r = 0; r < n.blocks; ++r) {
            double row = 0, column = 0;
            for (int64_t c = 0; c < n.blocks; ++c) row += p[n.at_p(b, head, r, c)], column += p[n.at_p(b, head, c, r)];
            CHECK(row == doctest::Approx(r < n.seen_blocks(b) ? 1 : 0).epsilon(1e-4));
            CHECK(column == doctest::Approx(r < n.seen_blocks(b) ? 1 : 0).epsilon(1e-4));
          }
    }
  }
}

TEST_CASE("mix_blocks and its gradients equal the definition") {
  for_all([](const Case& n, Device device) {
    const int64_t mixed = n.blocks * n.block, all = mixed + n.s;
    Tensor p = random_tensor(Shape{n.b, n.h, n.blocks, n.blocks}, 1, -1, 1, device);
    Tensor x = random_tensor(Shape{n.b, n.s, n.h, n.e}, 2, -1, 1, device);
    const Tensor dy = random_tensor(Shape{n.b, all, n.h, n.e}, 3, -1, 1, device);
    p.set_wants_grad();
    x.set_wants_grad();
    Tape tape;
    const Tensor y = mix_blocks(p, x, n.block, n.lengths);
    const Gradients gradients = tape.backward(weighted_sum(y, dy));
    const auto weights = doubles(p), numbers = doubles(x), cotangent = doubles(dy);
    std::vector<double> expected(cotangent.size(), 0), dx(numbers.size(), 0), dp(weights.size(), 0);
    for (int64_t b = 0; b < n.b; ++b)
      for (int64_t j = 0; j < n.s; ++j)
        for (int64_t head = 0; head < n.h; ++head)
          for (int64_t i = 0; i < n.e; ++i) {
            const size_t at = n.at(b, j, head, i, n.s), own = n.at(b, mixed + j, head, i, all);
            expected[own] = numbers[at];
            dx[at] += cotangent[own];
            for (int64_t r = 0; r < n.blocks && j < n.length(b); ++r) {
              const size_t to = n.at(b, r * n.block + j % n.block, head, i, all);
              const size_t weight = n.at_p(b, head, r, j / n.block);
              expected[to] += weights[weight] * numbers[at];
              dx[at] += weights[weight] * cotangent[to];
              dp[weight] += numbers[at] * cotangent[to];
            }
          }
    check_close(y, expected, reduction);
    check_close(gradients.of(x), dx, reduction);
    check_close(gradients.of(p), dp, reduction);
  });
}

TEST_CASE("on tensor cores, mix_blocks and its gradients differ by what TF32 rounds") {
  if (!why_unavailable(Device::cuda).empty()) return;
  const Case n({3, 130, 2, 33, 3}, true, Device::cuda);
  Tensor p = random_tensor(Shape{n.b, n.h, n.blocks, n.blocks}, 1, -1, 1, Device::cuda);
  Tensor x = random_tensor(Shape{n.b, n.s, n.h, n.e}, 2, -1, 1, Device::cuda);
  p.set_wants_grad();
  x.set_wants_grad();
  std::vector<std::vector<double>> exact_results, results;
  for (const Precision precision : {Precision::f32, Precision::tf32}) {
    set_precision(precision, Device::cuda);
    Tape tape;
    const Tensor y = mix_blocks(p, x, n.block, n.lengths);
    const Gradients g = tape.backward(weighted_sum(y, random_tensor(y.shape(), 3, -1, 1, Device::cuda)));
    set_precision(Precision::f32);
    (precision == Precision::f32 ? exact_results : results) = {doubles(y), doubles(g.of(p)), doubles(g.of(x))};
  }
  for (size_t i = 0; i < results.size(); ++i) {
    CHECK_LE(distance(results[i], exact_results[i]), 5e-3);
    CHECK(results[i] != exact_results[i]);
  }
}

TEST_CASE("block_sums, sinkhorn, mix_blocks: gradients by four-point differences") {
  for (const Device device : devices()) {
    const Case n({3, 13, 2, 3, 4}, true, device);
    const Tensor x = random_tensor(Shape{n.b, n.s, n.h, n.e}, 1, -1, 1, device);
    check_gradients([&](const auto& in) { return block_sums(in[0], n.block, n.lengths); }, {x});
    for (const int64_t iterations : {1, 5})
      check_gradients([&](const auto& in) { return sinkhorn(in[0], iterations, n.block, n.lengths); },
                      {random_tensor(Shape{n.b, n.blocks, n.h, n.blocks + 1}, 2, -2, 2, device)});
    check_gradients([&](const auto& in) { return mix_blocks(in[0], in[1], n.block, n.lengths); },
                    {random_tensor(Shape{n.b, n.h, n.blocks, n.blocks}, 3, -1, 1, device), x});
  }
}

TEST_CASE("sinkhorn, mix_blocks: gradients of many blocks, the same on every device") {
  const auto gradients = [](Device device) {
    const Case n({2, 200, 2, 4, 3}, true, device);
    Tensor logits = random_tensor(Shape{n.b, n.blocks, n.h, n.blocks + 5}, 1, -2, 2, device);
    logits.set_wants_grad();
    const Tensor x = random_tensor(Shape{n.b, n.s, n.h, n.e}, 2, -1, 1, device);
    Tape tape;
    const Tensor y = mix_blocks(sinkhorn(logits, 4, n.block, n.lengths), x, n.block, n.lengths);
    return tape.backward(weighted_sum(y, random_tensor(y.shape(), 3, -1, 1, device))).of(logits);
  };
  const auto expected = doubles(gradients(Device::cpu));
  for (const Device device : devices()) check_close(gradients(device), expected, reduction);
}

TEST_CASE("block_sums, sinkhorn, mix_blocks: the number of threads changes nothing") {
  const auto all = [] {
    const Case n({3, 700, 2, 24, 10}, true, Device::cpu);
    Tensor x = random_tensor(Shape{n.b, n.s, n.h, n.e}, 1);
    const Tensor w = random_tensor(Shape{n.blocks, n.e}, 3, -0.1f, 0.1f);
    x.set_wants_grad();
    Tape tape;
    const Tensor p = sinkhorn(linear(block_sums(x, n.block, n.lengths), w, {}), 5, n.block, n.lengths);
    const Tensor y = mix_blocks(p, x, n.block, n.lengths);
    const Gradients gradients = tape.backward(weighted_sum(y, random_tensor(y.shape(), 4)));
    return std::vector{y.to_vector(), gradients.of(x).to_vector()};
  };
  const auto expected = all();
  for (const int some : {1, 2, 5}) {
    const OmpThreads threads(some);
    CHECK(all() == expected);
  }
}

TEST_CASE("block_sums, sinkhorn, mix_blocks name what does not match") {
  const Tensor x = Tensor::full({2, 10, 1, 4}, 0), p = Tensor::full({2, 1, 3, 3}, 0);
  check_fails([&] { block_sums(Tensor::full({2, 10, 4}, 0), 4); }, "block_sums: x [2,10,4] is not [B,S,H,E]");
  check_fails([&] { block_sums(x, 0); }, "block_sums: a block of 0 positions");
  check_fails(
      [&] {
        block_sums(x, 4, Indices(Shape{2}, {1, 11}));
      },
      "block_sums: length 11 of sequence 1 is not in [0, 10]");
  check_fails(
      [] {
        sinkhorn(Tensor::full({2, 3, 1, 2}, 0), 5, 4);
      },
      "sinkhorn: logits [2,3,1,2] are not [B,N,H,at least N]");
  check_fails([] { sinkhorn(Tensor::full({2, 3, 1, 3}, 0), 0, 4); }, "sinkhorn: 0 iterations, blocks of 4 positions");
  check_fails(
      [] {
        sinkhorn(Tensor::full({1, 3, 1, 3}, 0), 5, 4, Indices(Shape{1}, {13}));
      },
      "sinkhorn: length 13 of sequence 0 is not in [0, 12]");
  check_fails([&] { mix_blocks(p, x, 5); },
              "mix_blocks: p [2,1,3,3] is not [2,1,2,2], as blocks of 5 positions of x [2,10,1,4] ask for");
}

TEST_CASE("sinkhorn, mix_blocks: running out of memory is an error, forward and backward") {
  const Tensor logits = random_tensor(Shape{1, 600, 1, 600}, 1).set_wants_grad();
  const Tensor x = random_tensor(Shape{1, 600, 1, 600}, 2);
  check_out_of_memory([&] { sinkhorn(logits, 2, 1); });
  Tape tape;
  const Tensor p = sinkhorn(logits, 2, 1);
  check_out_of_memory([&] { mix_blocks(p, x, 1); });
  const Tensor loss = sum(mix_blocks(p, x, 1));
  check_out_of_memory([&] { tape.backward(loss); });
}
