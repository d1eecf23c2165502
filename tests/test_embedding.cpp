#include "tests/check.h"

#include "ops/layers.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<double> reference(const Indices& tokens, const Tensor& table, const Tensor& code, int64_t first) {
  const std::vector<int32_t> t = tokens.to_vector();
  const std::vector<double> rows = doubles(table), codes = doubles(code);
  const int64_t length = tokens.shape()[1], d = table.shape()[1], p = code ? code.shape()[1] : 0;
  std::vector<double> y;
  for (int64_t r = 0; r < tokens.size(); ++r) {
    for (int64_t j = 0; j < d; ++j) y.push_back(rows[static_cast<size_t>(t[static_cast<size_t>(r)] * d + j)]);
    for (int64_t j = 0; j < p; ++j) y.push_back(codes[static_cast<size_t>((first + r % length) * p + j)]);
  }
  return y;
}

}  // namespace

TEST_CASE("embedding: values, with and without a code, from any position") {
  for (Device device : devices())
    for (int64_t d : {1, 31, 65, 128})
      for (int64_t p : {0, 3, 128})
        for (int64_t first : {0, 4}) {
          CAPTURE(d);
          CAPTURE(p);
          CAPTURE(first);
          const Indices tokens = random_indices(Shape{3, 33}, 1, 11, device);
          const Tensor table = random_tensor(Shape{11, d}, 2, -1, 1, device);
          const Tensor code = p ? random_tensor(Shape{37, p}, 3, -1, 1, device) : Tensor();
          const Indices from(Shape{1}, {static_cast<int32_t>(first)}, device);
          const Tensor y = embedding(tokens, table, code, {}, from);
          CHECK(y.shape() == Shape{3, 33, d + p});
          check_close(y, reference(tokens, table, code, first), exact);
          const Dropout options{0.2f, Key{4}};
          check_close(embedding(tokens, table, code, options, from), doubles(dropout(y, options)), exact);
        }
}

TEST_CASE("embedding: gradient, repeated tokens included") {
  for (Device device : devices()) {
    const Indices tokens = random_indices(Shape{2, 33}, 5, 4, device);
    const Tensor code = random_tensor(Shape{33, 5}, 6, -1, 1, device);
    for (float p : {0.0f, 0.3f})
      check_gradients(
          [&](const std::vector<Tensor>& in) {
            return embedding(tokens, in[0], code, {p, Key{7}});
          },
          {random_tensor(Shape{5, 65}, 8, -1, 1, device)});
  }
}

TEST_CASE("embedding: the gradient of a long batch is the sum over its tokens") {
  for (Device device : devices()) {
    const int64_t d = 130, p = 9;
    const Indices tokens = random_indices(Shape{10, 65}, 9, 7, device);
    const Tensor code = random_tensor(Shape{65, p}, 10, -1, 1, device);
    Tensor table = random_tensor(Shape{8, d}, 11, -1, 1, device);
    table.set_wants_grad();
    const Tensor c = random_tensor(Shape{10 * 65 * (d + p), 1}, 12, -1, 1, device);
    const Dropout options{0.1f, Key{13}};
    Tape tape;
    const Tensor y = embedding(tokens, table, code, options);
    const Tensor dtable = tape.backward(weighted_sum(y, c)).of(table);

    const std::vector<double> dropped = doubles(dropout(c, options));
    const std::vector<int32_t> t = tokens.to_vector();
    std::vector<double> sums(static_cast<size_t>(8 * d));
    for (size_t r = 0; r < t.size(); ++r)
      for (size_t j = 0; j < static_cast<size_t>(d); ++j)
        sums[static_cast<size_t>(t[r] * d) + j] += dropped[r * static_cast<size_t>(d + p) + j];
    check_close(dtable, sums, reduction);
  }
}

// On CUDA, the positions are cut into slices: two of 257 for such a vocabulary, which 32 does not divide.
TEST_CASE("embedding: with a large vocabulary, the gradient counts each position once") {
  for (Device device : devices()) {
    const int64_t vocabulary = 10923;
    const Indices tokens = random_indices(Shape{27, 19}, 14, 40, device);
    const Tensor table = random_tensor(Shape{vocabulary, 1}, 15, -1, 1, device).set_wants_grad();
    const Tensor dy = random_tensor(Shape{tokens.size(), 1}, 16, -1, 1, device);
    Tape tape;
    const Tensor y = embedding(tokens, table, {});
    const Tensor dtable = tape.backward(weighted_sum(y, dy)).of(table);
    std::vector<double> sums(static_cast<size_t>(vocabulary));
    const std::vector<int32_t> t = tokens.to_vector();
    for (size_t r = 0; r < t.size(); ++r) sums[static_cast<size_t>(t[r])] += doubles(dy)[r];
    check_close(dtable, sums, reduction);
  }
}

TEST_CASE("embedding: nothing in, nothing out") {
  const Tensor table(Shape{4, 3}), code(Shape{5, 2});
  CHECK(embedding(Indices(Shape{0, 5}), table, code).shape() == Shape{0, 5, 5});
  CHECK(embedding(Indices(Shape{2, 0}), table, code).shape() == Shape{2, 0, 5});
}

TEST_CASE("embedding: what it refuses") {
  const Tensor table(Shape{4, 3}), code(Shape{5, 2});
  const Indices tokens(Shape{1, 2}, {0, 3});
  check_fails(
      [&] {
        embedding(Indices(Shape{1, 2}, {0, 4}), table, code);
      },
      "embedding: token 4 is not in table [4,3]");
  check_fails(
      [&] {
        embedding(Indices(Shape{1, 2}, {-1, 0}), table, code);
      },
      "embedding: token -1 is not in table [4,3]");
  check_fails([&] { embedding(Indices(Shape{2}, {0, 1}), table, code); }, "embedding: tokens [2] are not [B,L]");
  check_fails([&] { embedding(tokens, Tensor(Shape{4}), code); }, "embedding: table [4] is not [V,D]");
  check_fails([&] { embedding(tokens, table, Tensor(Shape{5})); }, "embedding: code [5] is not");
  check_fails([&] { embedding(tokens, table, code, {}, Indices(Shape{1}, {4})); },
              "embedding: code [5,2] has no row for each of the positions 4 to 5");
  check_fails([&] { embedding(tokens, table, code, {}, Indices(Shape{1}, {-1})); }, "embedding: code [5,2] has no row");
  check_fails(
      [&] {
        embedding(tokens, table, code, {}, Indices(Shape{2}, {0, 1}));
      },
      "embedding: first [2] is not one position");
  check_fails([&] { embedding(tokens, table, code, {1, {}}); }, "embedding: the dropout probability 1");
}
