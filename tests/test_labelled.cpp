// Batches for classifiers: tokens, positions, cut and left out bytes, pairs.
#include "datasets/labelled.h"

#include "tests/check.h"

namespace runnel::test {
namespace {

// Sequences of these bytes; sample i has label i.
LabelledSequences make(const std::vector<std::vector<uint8_t>>& sequences, int64_t per_sample = 1) {
  LabelledSequences set{"made by hand", {"a", "b", "c", "d"}};
  set.per_sample = per_sample;
  for (const std::vector<uint8_t>& sequence : sequences) set.append(sequence);
  for (int64_t i = 0; i < std::ssize(sequences) / per_sample; ++i) set.labels.push_back(static_cast<int32_t>(i));
  return set;
}

std::vector<int32_t> row(const Indices& x, int64_t b, int64_t columns) {
  const std::vector<int32_t> all = x.to_vector();
  const auto first = all.begin() + b * x.shape()[1];
  return {first, first + columns};
}

using Row = std::vector<int32_t>;

TEST_CASE("token_batch: byte + 1, padding 0 up to a multiple of 32, in the order of the samples") {
  for (const Device device : devices()) {
    const LabelledSequences set = make({{10, 0, 255}, std::vector<uint8_t>(33, 7), {}});
    const TokenBatch batch = token_batch(set, std::vector<int64_t>{2, 0}, {}, device);
    CHECK(batch.tokens.shape() == Shape{2, 32});
    CHECK(batch.positions.shape() == Shape{2, 32});
    CHECK(row(batch.tokens, 0, 3) == Row{1, 0, 0});  // an empty sequence
    CHECK(row(batch.tokens, 1, 5) == Row{11, 1, 256, 0, 0});
    CHECK(row(batch.positions, 1, 5) == Row{0, 1, 2, 0, 0});
    CHECK(batch.lengths.to_vector() == Row{1, 3});
    CHECK(batch.labels.to_vector() == Row{2, 0});
    CHECK(token_batch(set, std::vector<int64_t>{1}, {}, device).tokens.shape() == Shape{1, 64});
    CHECK(token_batch(set, std::vector<int64_t>{1}, {32}, device).tokens.shape() == Shape{1, 32});
    CHECK(token_batch(set, {}, {}, device).tokens.size() == 0);
  }
}

TEST_CASE("token_batch: bytes of value 0 are left out, the others keep their positions; first cut, then left out") {
  const LabelledSequences set = make({{0, 5, 0, 0, 9, 3}, {0, 0}});
  const TokenBatch batch = token_batch(set, std::vector<int64_t>{0, 1}, {5, true});
  CHECK(row(batch.tokens, 0, 4) == Row{6, 10, 0, 0});
  CHECK(row(batch.positions, 0, 4) == Row{1, 4, 0, 0});
  CHECK(row(batch.tokens, 1, 3) == Row{1, 0, 0});
  CHECK(batch.lengths.to_vector() == Row{2, 1});
  CHECK(sample_lengths(set, {5, true}) == std::vector<int64_t>{2, 1});
  CHECK(sample_lengths(set, {5, false}) == std::vector<int64_t>{5, 2});
}

TEST_CASE("token_batch: a pair's sequences are neighbours") {
  const LabelledSequences set = make({{1}, {2, 2}, {3, 3, 3}, {4}}, 2);
  CHECK(set.count() == 2);
  const TokenBatch batch = token_batch(set, std::vector<int64_t>{1, 0}, {});
  CHECK(batch.lengths.to_vector() == Row{3, 1, 1, 2});
  CHECK(batch.labels.to_vector() == Row{1, 0});
  for (int64_t b = 0; b < 4; ++b) CHECK(row(batch.tokens, b, 1) == Row{Row{4, 5, 2, 3}[static_cast<size_t>(b)]});
  CHECK(sample_lengths(set, {}) == std::vector<int64_t>{2, 3});
}

TEST_CASE("token_batch: what cannot be") {
  const LabelledSequences set = make({{1}});
  check_fails([&] { token_batch(set, std::vector<int64_t>{1}, {}); }, "made by hand has 1 samples, but no number 1");
  check_fails([&] { token_batch(set, std::vector<int64_t>{-1}, {}); }, "no number -1");
  check_fails([&] { token_batch(set, std::vector<int64_t>{0}, {0}); }, "cut at a length of 0");
  check_fails([&] { sample_lengths(set, {-3}); }, "cut at a length of -3");
}

TEST_CASE("checksum of labelled sequences: bytes, lengths and labels count") {
  const uint32_t sum = checksum(make({{1, 2}, {3}}));
  CHECK(sum == checksum(make({{1, 2}, {3}})));
  CHECK(sum != checksum(make({{1}, {2, 3}})));
  CHECK(sum != checksum(make({{1, 2}, {4}})));
  LabelledSequences other = make({{1, 2}, {3}});
  other.labels = {1, 1};
  CHECK(sum != checksum(other));
}

}  // namespace
}  // namespace runnel::test
