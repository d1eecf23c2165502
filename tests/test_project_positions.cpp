#include <numeric>

#include "ops/approximate_attention.h"
#include "ops/numerics.h"
#include "ops/reductions.h"
#include "tests/check.h"
#include "tests/memory_limit.h"

using namespace runnel;
using namespace runnel::test;

namespace {

struct Case {
  int64_t b, s, c, rows, rank;
  Tensor x, p, dy;
  Indices lengths;  // none, all, and what is between; or empty
  Case(const std::array<int64_t, 5>& sizes, bool padded, Device device)
      : b(sizes[0]),
        s(sizes[1]),
        c(sizes[2]),
        rows(sizes[3]),
        rank(sizes[4]),
        x(random_tensor(Shape{b, s, c}, 1, -1, 1, device)),
        p(random_tensor(Shape{rows, rank}, 2, -1, 1, device)),
        dy(random_tensor(Shape{b, rank, c}, 3, -1, 1, device)) {
    std::vector<int32_t> some;
    for (int64_t n = 0; n < b; ++n) some.push_back(static_cast<int32_t>(n == 1 ? 0 : n == 2 ? s : s - s / (n + 2)));
    if (padded) lengths = Indices(Shape{b}, some, device);
  }
};

struct Reference {
  std::vector<double> y, dx, dp;
  explicit Reference(const Case& n)
      : y(static_cast<size_t>(n.dy.size()), 0),
        dx(static_cast<size_t>(n.x.size()), 0),
        dp(static_cast<size_t>(n.p.size()), 0) {
    const auto x = doubles(n.x), p = doubles(n.p), dy = doubles(n.dy);
    for (int64_t b = 0; b < n.b; ++b)
      for (int64_t j = 0; j < (n.lengths ? n.lengths.to_vector()[static_cast<size_t>(b)] : n.s); ++j)
        for (int64_t r = 0; r < n.rank; ++r)
          for (int64_t c = 0; c < n.c; ++c) {
            const auto yi = static_cast<size_t>((b * n.rank + r) * n.c + c);
            const auto xi = static_cast<size_t>((b * n.s + j) * n.c + c), pi = static_cast<size_t>(j * n.rank + r);
            y[yi] += p[pi] * x[xi];
            dx[xi] += p[pi] * dy[yi];
            dp[pi] += x[xi] * dy[yi];
          }
  }
};

std::vector<Tensor> gradients_of(const Case& n) {
  Tensor x = n.x, p = n.p;
  x.set_wants_grad();
  p.set_wants_grad();
  Tape tape;
  const Tensor y = project_positions(x, p, n.lengths);
  const Tensor loss = weighted_sum(y, n.dy);
  const Gradients gradients = tape.backward(loss);
  return {y, gradients.of(x), gradients.of(p)};
}

}  // namespace

// B, S, C, rows of p, R
TEST_CASE("project_positions and its gradients equal the definition") {
  for (const Device device : devices())
    for (const auto& sizes : std::vector<std::array<int64_t, 5>>{
             {1, 1, 1, 1, 1}, {3, 33, 7, 40, 3}, {4, 65, 40, 65, 33}, {2, 200, 130, 200, 16}, {3, 31, 64, 100, 31}})
      for (const bool padded : {false, true}) {
        CAPTURE(sizes[1]);
        CAPTURE(padded);
        CAPTURE(name(device));
        const Case n(sizes, padded, device);
        const Reference reference(n);
        const std::vector<Tensor> all = gradients_of(n);
        check_close(all[0], reference.y, reduction);
        check_close(all[1], reference.dx, reduction);
        check_close(all[2], reference.dp, reduction);
      }
}

TEST_CASE("on tensor cores, project_positions and its gradients differ by what TF32 rounds") {
  if (!why_unavailable(Device::cuda).empty()) return;
  const Case n({3, 65, 40, 70, 33}, true, Device::cuda);
  const std::vector<Tensor> expected = gradients_of(n);
  set_precision(Precision::tf32, Device::cuda);
  const std::vector<Tensor> actual = gradients_of(n);
  set_precision(Precision::f32);
  for (size_t i = 0; i < actual.size(); ++i) {
    check_close(actual[i], doubles(expected[i]), 5e-3);
    CHECK(actual[i].to_vector() != expected[i].to_vector());
  }
}

TEST_CASE("project_positions: gradients by four-point differences, and any axes after the positions") {
  for (const Device device : devices()) {
    const Case n({3, 9, 6, 11, 2}, true, device);
    check_gradients([&](const auto& in) { return project_positions(in[0], in[1], n.lengths); },
                    {random_tensor(Shape{3, 9, 2, 3}, 4, -1, 1, device), n.p});
    CHECK_EQ(project_positions(random_tensor(Shape{3, 9, 2, 3}, 4, -1, 1, device), n.p).shape(), Shape{3, 2, 2, 3});
    CHECK_EQ(project_positions(random_tensor(Shape{3, 9}, 4, -1, 1, device), n.p).shape(), Shape{3, 2});
    CHECK_EQ(project_positions(random_tensor(Shape{0, 9, 2}, 4, -1, 1, device), n.p).shape(), Shape{0, 2, 2});
    CHECK(doubles(project_positions(random_tensor(Shape{1, 0, 2}, 4, -1, 1, device), n.p)) ==
          std::vector<double>(4, 0));
  }
}

TEST_CASE("project_positions: padding that is not a number changes nothing") {
  for (const Device device : devices()) {
    Case n({3, 70, 5, 70, 4}, true, device);
    const std::vector<Tensor> expected = gradients_of(n);
    std::vector<float> x = n.x.to_vector();
    for (int64_t b = 0; b < n.b; ++b)
      for (int64_t j = n.lengths.to_vector()[static_cast<size_t>(b)]; j < n.s; ++j)
        x[static_cast<size_t>((b * n.s + j) * n.c)] = NAN;
    n.x = Tensor(n.x.shape(), x, device);
    const std::vector<Tensor> actual = gradients_of(n);
    for (size_t i = 0; i < actual.size(); ++i) CHECK(actual[i].to_vector() == expected[i].to_vector());
  }
}

TEST_CASE("project_positions: the number of threads changes nothing") {
  const Case n({3, 300, 140, 300, 16}, true, Device::cpu);
  const auto all = [&] {
    std::vector<std::vector<float>> numbers;
    for (const Tensor& x : gradients_of(n)) numbers.push_back(x.to_vector());
    return numbers;
  };
  const auto expected = all();
  for (const int some : {1, 2, 5}) {
    const OmpThreads threads(some);
    CHECK(all() == expected);
  }
}

TEST_CASE("project_positions names what does not match") {
  const Tensor x = Tensor::full({2, 10, 4}, 0), p = Tensor::full({10, 3}, 0);
  check_fails([&] { project_positions(Tensor::full({2}, 0), p); }, "project_positions: x [2] is not [B,S,...]");
  check_fails([&] { project_positions(x, Tensor::full({10}, 0)); }, "project_positions: p [10] is not [at least S,R]");
  check_fails(
      [&] {
        project_positions(x, Tensor::full({9, 3}, 0));
      },
      "project_positions: x [2,10,4] has more positions than p [9,3] has rows");
  check_fails(
      [&] {
        project_positions(x, p, Indices(Shape{3}, {1, 2, 3}));
      },
      "project_positions: lengths [3] are not one number for each of 2 sequences");
  check_fails(
      [&] {
        project_positions(x, p, Indices(Shape{2}, {1, 11}));
      },
      "project_positions: length 11 of sequence 1 is not in [0, 10]");
}

TEST_CASE("project_positions: running out of memory is an error, forward and backward") {
  const Tensor x = random_tensor(Shape{1, 64, 128}, 1).set_wants_grad();
  const Tensor p = random_tensor(Shape{64, 4096}, 2);
  check_out_of_memory([&] { project_positions(x, p); });
  Tape tape;
  const Tensor loss = sum(project_positions(x, p));
  check_out_of_memory([&] { tape.backward(loss); });
}
