#include "datasets/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/check.h"

namespace runnel {

std::vector<int64_t> shuffled(int64_t count, Key key) {
  check(count >= 0 && count <= int64_t{1} << 32, "shuffled: ", count, " numbers; at most 2^32 can be shuffled");
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i-- > 1;)  // Fisher and Yates: each place takes one of the numbers not yet taken
    std::swap(order[i], order[key.below(i, static_cast<uint32_t>(i + 1))]);
  return order;
}

EpochShuffle::EpochShuffle(int64_t count, Key key) : count_(count), key_(key) {
  check(count >= 1, "EpochShuffle: ", count, " samples; at least 1 is needed");
}

int64_t EpochShuffle::operator()(int64_t n) {
  check(n >= 0, "EpochShuffle: sample number ", n);
  if (n / count_ != epoch_) {
    order_ = shuffled(count_, key_.fold(static_cast<uint64_t>(n / count_)));
    epoch_ = n / count_;
  }
  return order_[static_cast<size_t>(n % count_)];
}

LengthBuckets::LengthBuckets(std::vector<int64_t> lengths, int64_t batch, Key key)
    : lengths_(std::move(lengths)), batch_(batch), key_(key) {
  check(!lengths_.empty(), "LengthBuckets: 0 samples; at least 1 is needed");
  check(batch >= 1, "LengthBuckets: batches of ", batch, " samples; at least 1 is needed");
  batches_ = std::max<int64_t>(std::ssize(lengths_) / batch, 1);
}

int64_t LengthBuckets::operator()(int64_t n) {
  constexpr int64_t window = 64;  // batches
  check(n >= 0, "LengthBuckets: sample number ", n);
  const int64_t size = batches_ * batch_, epoch = n / size;
  if (epoch != epoch_) {
    const Key key = key_.fold(static_cast<uint64_t>(epoch));
    const std::vector<int64_t> samples = shuffled(std::ssize(lengths_), key.fold(0));
    std::vector<int64_t> sorted;
    for (int64_t i = 0; i < size; ++i) sorted.push_back(samples[static_cast<size_t>(i) % samples.size()]);
    const auto shorter = [&](int64_t a, int64_t b) {
      return lengths_[static_cast<size_t>(a)] < lengths_[static_cast<size_t>(b)];
    };
    for (int64_t first = 0; first < size; first += window * batch_)
      std::stable_sort(sorted.begin() + first, sorted.begin() + std::min(first + window * batch_, size), shorter);
    order_.clear();
    for (const int64_t batch : shuffled(batches_, key.fold(1)))
      order_.insert(order_.end(), sorted.begin() + batch * batch_, sorted.begin() + (batch + 1) * batch_);
    epoch_ = epoch;
  }
  return order_[static_cast<size_t>(n % size)];
}

PaddedBatch padded(const std::vector<std::vector<int32_t>>& sequences, int32_t padding, int64_t length, Device device) {
  check(length >= 0, "padded: a length of ", length);
  int64_t longest = 0;
  std::vector<int32_t> lengths;
  for (const std::vector<int32_t>& sequence : sequences) {
    longest = std::max<int64_t>(longest, std::ssize(sequence));
    lengths.push_back(static_cast<int32_t>(sequence.size()));
  }
  if (length == 0) length = longest;
  check(longest <= length, "padded: a sequence of ", longest, " tokens does not fit into a length of ", length);
  const Shape shape{std::ssize(sequences), length};
  std::vector<int32_t> tokens(static_cast<size_t>(shape.size()), padding);
  for (size_t b = 0; b < sequences.size(); ++b)
    std::copy(sequences[b].begin(), sequences[b].end(), tokens.begin() + static_cast<int64_t>(b) * length);
  return {Indices(shape, tokens, device), Indices(Shape{std::ssize(sequences)}, lengths, device)};
}

}  // namespace runnel
