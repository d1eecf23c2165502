// Batches: shuffling by a key, epochs, and padding of sequences.
#include "datasets/batch.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tests/check.h"

namespace runnel::test {
namespace {

TEST_CASE("shuffled: a permutation that the key alone decides") {
  for (const int64_t count : {0, 1, 2, 3, 31, 1000}) {
    CAPTURE(count);
    std::vector<int64_t> order = shuffled(count, Key{5});
    CHECK(order == shuffled(count, Key{5}));
    if (count == 1000) CHECK(order != shuffled(count, Key{6}));
    std::sort(order.begin(), order.end());
    std::vector<int64_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    CHECK(order == all);
  }
  CHECK(shuffled(8, Key{1}) == std::vector<int64_t>{0, 4, 1, 2, 6, 7, 3, 5});  // the same on every machine
  check_fails([] { shuffled(-1, Key{1}); }, "-1 numbers");
  check_fails([] { shuffled((int64_t{1} << 32) + 1, Key{1}); }, "at most 2^32");
}

TEST_CASE("shuffled: every order is equally likely") {
  std::map<std::vector<int64_t>, int32_t> numbers;
  std::vector<int32_t> drawn;
  for (uint64_t seed = 0; seed < 4800; ++seed)
    drawn.push_back(
        numbers.emplace(shuffled(4, Key{9}.fold(seed)), static_cast<int32_t>(numbers.size())).first->second);
  REQUIRE(numbers.size() == 24);
  check_frequencies(drawn, std::vector<double>(24, 1.0 / 24));
}

TEST_CASE("EpochShuffle: each epoch has every sample once, in an order of its own, wherever reading starts") {
  EpochShuffle shuffle(10, Key{3});
  std::vector<int64_t> read;
  for (int64_t n = 0; n < 40; ++n) read.push_back(shuffle(n));
  for (auto epoch = read.begin(); epoch != read.end(); epoch += 10) {
    std::vector<int64_t> sorted(epoch, epoch + 10);
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    if (epoch != read.begin()) CHECK(!std::equal(epoch, epoch + 10, read.begin()));
  }
  for (const int64_t n : {39, 0, 17, 25}) CHECK(EpochShuffle(10, Key{3})(n) == read[static_cast<size_t>(n)]);
  check_fails([] { EpochShuffle(0, Key{3}); }, "0 samples");
  check_fails([&] { shuffle(-1); }, "sample number -1");
}

TEST_CASE("padded: rows of sequences with their lengths") {
  const std::vector<std::vector<int32_t>> sequences = {{1, 2, 3}, {}, {4}};
  const PaddedBatch batch = padded(sequences, -7);
  CHECK(batch.tokens.shape() == Shape{3, 3});
  CHECK(batch.tokens.to_vector() == std::vector<int32_t>{1, 2, 3, -7, -7, -7, 4, -7, -7});
  CHECK(batch.lengths.shape() == Shape{3});
  CHECK(batch.lengths.to_vector() == std::vector<int32_t>{3, 0, 1});
  const PaddedBatch wide = padded(sequences, 0, 4);
  CHECK(wide.tokens.to_vector() == std::vector<int32_t>{1, 2, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0});
  CHECK(padded({}).tokens.shape() == Shape{0, 0});
  check_fails([&] { padded(sequences, 0, 2); }, "a sequence of 3 tokens does not fit into a length of 2");
  check_fails([&] { padded(sequences, 0, -1); }, "a length of -1");
}

}  // namespace
}  // namespace runnel::test
