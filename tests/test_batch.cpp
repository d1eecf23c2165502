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

// As many as wanted, spread as ListOps': from 501 to 1,999, the mean near 1,030.
std::vector<int64_t> listops_lengths(int64_t count) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    const float u = Key{8}.uniform(static_cast<uint64_t>(i));
    lengths.push_back(501 + static_cast<int64_t>(1499 * u * (.4f + .6f * u * u)));
  }
  return lengths;
}

TEST_CASE("LengthBuckets: an epoch has every sample at most once, in an order of its own, wherever reading starts") {
  const std::vector<int64_t> lengths = listops_lengths(1003);
  LengthBuckets buckets(lengths, 5, Key{3});
  std::vector<int64_t> read;
  for (int64_t n = 0; n < 4000; ++n) read.push_back(buckets(n));
  for (auto epoch = read.begin(); epoch != read.end(); epoch += 1000) {
    std::vector<int64_t> sorted(epoch, epoch + 1000);
    std::sort(sorted.begin(), sorted.end());
    CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
    CHECK(sorted.front() >= 0);
    CHECK(sorted.back() < 1003);
    if (epoch != read.begin()) CHECK(!std::equal(epoch, epoch + 1000, read.begin()));
  }
  std::vector<int64_t> all = read;
  std::sort(all.begin(), all.end());
  CHECK(std::unique(all.begin(), all.end()) - all.begin() == 1003);  // other epochs have what one leaves out
  for (const int64_t n : {3999, 0, 1700, 2500})
    CHECK(LengthBuckets(lengths, 5, Key{3})(n) == read[static_cast<size_t>(n)]);
  CHECK(LengthBuckets(lengths, 5, Key{4})(0) != read[0]);
}

TEST_CASE("LengthBuckets: a batch has similar lengths; long and short batches alternate") {
  const std::vector<int64_t> lengths = listops_lengths(20000);
  for (const int64_t batch : {1, 32}) {
    CAPTURE(batch);
    LengthBuckets buckets(lengths, batch, Key{3});
    int64_t tokens = 0, cells = 0, longer = 0;
    double before = 0;
    const int64_t batches = 20000 / batch;
    for (int64_t i = 0; i < batches; ++i) {
      int64_t sum = 0, longest = 0;
      for (int64_t n = i * batch; n < (i + 1) * batch; ++n) {
        const int64_t length = lengths[static_cast<size_t>(buckets(n))];
        sum += length;
        longest = std::max(longest, length);
      }
      tokens += sum;
      cells += longest * batch;
      const double mean = static_cast<double>(sum) / static_cast<double>(batch);
      longer += mean > before;
      before = mean;
    }
    CHECK(static_cast<double>(cells) < 1.02 * static_cast<double>(tokens));
    CHECK(longer > 2 * batches / 5);
    CHECK(longer < 3 * batches / 5);
  }
}

TEST_CASE("LengthBuckets: fewer samples than a batch; what cannot be") {
  LengthBuckets few({7, 5, 9}, 8, Key{1});
  std::vector<int64_t> times(3);
  for (int64_t n = 0; n < 8; ++n) ++times[static_cast<size_t>(few(n))];
  std::sort(times.begin(), times.end());
  CHECK(times == std::vector<int64_t>{2, 3, 3});
  check_fails([] { LengthBuckets({}, 8, Key{1}); }, "0 samples");
  check_fails([] { LengthBuckets({1}, 0, Key{1}); }, "batches of 0");
  check_fails([&] { few(-1); }, "sample number -1");
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
