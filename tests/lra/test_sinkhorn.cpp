#include <algorithm>

#include "ops/linear.h"
#include "ops/lra/attention.h"
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

TEST_CASE("sinkhorn: gradients by four-point differences") {
  for (const Device device : devices()) {
    const Case n({3, 13, 2, 3, 4}, true, device);
    for (const int64_t iterations : {1, 5})
      check_gradients([&](const auto& in) { return sinkhorn(in[0], iterations, n.block, n.lengths); },
                      {random_tensor(Shape{n.b, n.blocks, n.h, n.blocks + 1}, 2, -2, 2, device)});
  }
}

TEST_CASE("sinkhorn: gradients of many blocks, the same on every device") {
  const auto gradients = [](Device device) {
    const Case n({2, 200, 2, 4, 3}, true, device);
    Tensor logits = random_tensor(Shape{n.b, n.blocks, n.h, n.blocks + 5}, 1, -2, 2, device);
    logits.set_wants_grad();
    Tape tape;
    const Tensor y = sinkhorn(logits, 4, n.block, n.lengths);
    return tape.backward(weighted_sum(y, random_tensor(y.shape(), 3, -1, 1, device))).of(logits);
  };
  const auto expected = doubles(gradients(Device::cpu));
  for (const Device device : devices()) check_close(gradients(device), expected, reduction);
}

TEST_CASE("sinkhorn: the number of threads changes nothing") {
  const auto all = [] {
    const Case n({3, 700, 2, 24, 10}, true, Device::cpu);
    Tensor logits = random_tensor(Shape{n.b, n.blocks, n.h, n.blocks}, 1, -2, 2);
    logits.set_wants_grad();
    Tape tape;
    const Tensor p = sinkhorn(logits, 5, n.block, n.lengths);
    const Gradients gradients = tape.backward(weighted_sum(p, random_tensor(p.shape(), 4)));
    return std::vector{p.to_vector(), gradients.of(logits).to_vector()};
  };
  const auto expected = all();
  for (const int some : {1, 2, 5}) {
    const OmpThreads threads(some);
    CHECK(all() == expected);
  }
}

TEST_CASE("sinkhorn names what does not match") {
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
}

TEST_CASE("sinkhorn: running out of memory is an error, forward and backward") {
  const Tensor logits = random_tensor(Shape{1, 600, 1, 600}, 1).set_wants_grad();
  check_out_of_memory([&] { sinkhorn(logits, 2, 1); });
  Tape tape;
  const Tensor loss = sum(sinkhorn(logits, 2, 1));
  check_out_of_memory([&] { tape.backward(loss); });
}
