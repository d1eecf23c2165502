#include "datasets/lra/labelled.h"

#include <zlib.h>

#include <algorithm>

#include "engine/check.h"

namespace runnel {
namespace {

constexpr int64_t round_to = 32;  // lengths of batches: few different ones, and whole vectors

std::span<const uint8_t> shown(const LabelledSequences& set, int64_t sequence, SequenceView view) {
  const std::span<const uint8_t> all = set.sequence(sequence);
  return all.first(static_cast<size_t>(std::min<int64_t>(std::ssize(all), view.longest)));
}

int64_t shown_length(const LabelledSequences& set, int64_t sequence, SequenceView view) {
  const std::span<const uint8_t> bytes = shown(set, sequence, view);
  const int64_t left_out = view.skip_zeros ? std::count(bytes.begin(), bytes.end(), 0) : 0;
  return std::max<int64_t>(std::ssize(bytes) - left_out, 1);
}

void check_view(const LabelledSequences& set, SequenceView view) {
  check(view.longest >= 1, "token_batch: sequences of ", set.name, " cut at a length of ", view.longest,
        "; at least 1 is needed");
}

template <class T>
uLong add_to(uLong crc, const std::vector<T>& values) {
  return crc32_z(crc, reinterpret_cast<const Bytef*>(values.data()), values.size() * sizeof(T));
}

}  // namespace

void LabelledSequences::append(std::span<const uint8_t> sequence) {
  bytes.insert(bytes.end(), sequence.begin(), sequence.end());
  first.push_back(std::ssize(bytes));
}

uint32_t checksum(const LabelledSequences& set) {
  return static_cast<uint32_t>(add_to(add_to(add_to(0, set.bytes), set.first), set.labels));
}

Shortcuts shortcuts(const LabelledSequences& train, const LabelledSequences& test) {
  const size_t classes = train.class_names.size();
  const auto first_byte = [](const LabelledSequences& set, int64_t sample) {  // 256: there is none
    const std::span<const uint8_t> sequence = set.sequence(sample * set.per_sample);
    return sequence.empty() ? size_t{256} : size_t{sequence[0]};
  };
  std::vector<int64_t> all(classes);
  std::vector<std::vector<int64_t>> by_byte(257, all);
  for (int64_t i = 0; i < train.count(); ++i) {
    const size_t label = static_cast<size_t>(train.labels[static_cast<size_t>(i)]);
    ++all.at(label);
    ++by_byte[first_byte(train, i)][label];
  }
  const auto most_frequent = [](const std::vector<int64_t>& counts) {
    return std::max_element(counts.begin(), counts.end()) - counts.begin();
  };
  const auto same = most_frequent(all);
  int64_t same_right = 0, byte_right = 0;
  for (int64_t i = 0; i < test.count(); ++i) {
    const std::vector<int64_t>& counts = by_byte[first_byte(test, i)];
    const auto answer = most_frequent(counts);
    const int32_t label = test.labels[static_cast<size_t>(i)];
    same_right += label == same;
    byte_right += label == (counts[static_cast<size_t>(answer)] ? answer : same);
  }
  const double of = static_cast<double>(std::max<int64_t>(test.count(), 1));
  return {static_cast<double>(same_right) / of, static_cast<double>(byte_right) / of};
}

std::vector<int64_t> sample_lengths(const LabelledSequences& set, SequenceView view) {
  check_view(set, view);
  std::vector<int64_t> lengths(set.labels.size());
  for (int64_t i = 0; i < set.count() * set.per_sample; ++i) {
    int64_t& length = lengths[static_cast<size_t>(i / set.per_sample)];
    length = std::max(length, shown_length(set, i, view));
  }
  return lengths;
}

TokenBatch token_batch(const LabelledSequences& set, std::span<const int64_t> samples, SequenceView view,
                       Device device) {
  check_view(set, view);
  std::vector<int64_t> sequences;
  std::vector<int32_t> lengths, labels;
  for (const int64_t sample : samples) {
    check(sample >= 0 && sample < set.count(), "token_batch: ", set.name, " has ", set.count(),
          " samples, but no number ", sample);
    labels.push_back(set.labels[static_cast<size_t>(sample)]);
    for (int64_t i = 0; i < set.per_sample; ++i) {
      sequences.push_back(sample * set.per_sample + i);
      lengths.push_back(static_cast<int32_t>(shown_length(set, sequences.back(), view)));
    }
  }
  const int64_t rows = std::ssize(lengths);
  const int64_t longest = rows ? *std::max_element(lengths.begin(), lengths.end()) : 0;
  const Shape shape{rows, std::min((longest + round_to - 1) / round_to * round_to, view.longest)};
  std::vector<int32_t> tokens(static_cast<size_t>(shape.size())), positions(tokens.size());
  for (int64_t b = 0; b < rows; ++b) {
    const std::span<const uint8_t> bytes = shown(set, sequences[static_cast<size_t>(b)], view);
    size_t to = static_cast<size_t>(b * shape[1]);
    tokens[to] = 1;  // stays if no byte is shown
    for (size_t place = 0; place < bytes.size(); ++place) {
      if (view.skip_zeros && bytes[place] == 0) continue;
      tokens[to] = bytes[place] + 1;
      positions[to++] = static_cast<int32_t>(place);
    }
  }
  return {Indices(shape, tokens, device), Indices(shape, positions, device), Indices(Shape{rows}, lengths, device),
          Indices(Shape{std::ssize(labels)}, labels, device)};
}

}  // namespace runnel
