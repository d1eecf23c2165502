// Sequences of bytes with a class each: sets in memory, and the batches that a classifier reads.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/tensor.h"

namespace runnel {

struct LabelledSequences {
  std::string name;  // printed beside every result
  std::vector<std::string> class_names;
  std::vector<uint8_t> bytes = {};   // of all sequences, one after another
  std::vector<int64_t> first = {0};  // sequence i is bytes first[i] .. first[i + 1] - 1
  std::vector<int32_t> labels = {};  // numbers of classes, one for each sample
  int64_t per_sample = 1;            // 2: sample i is the pair of sequences 2 i and 2 i + 1

  int64_t count() const { return std::ssize(labels); }  // of samples
  int64_t length(int64_t i) const { return first[static_cast<size_t>(i) + 1] - first[static_cast<size_t>(i)]; }
  std::span<const uint8_t> sequence(int64_t i) const {
    return {bytes.data() + first[static_cast<size_t>(i)], static_cast<size_t>(length(i))};
  }
  void append(std::span<const uint8_t> sequence);  // the label is the caller's to add
};

struct ClassificationData {
  LabelledSequences train, validation, test;  // with the same class names
};

// CRC-32 of bytes, lengths and labels.
uint32_t checksum(const LabelledSequences& set);

// Accuracies without reading a sequence: the share of right answers in `test` of the class that is the most
// frequent in `train`, of all samples, and of those that begin with the same byte (for ListOps, the outermost
// operator). A result counts as far as it is better.
struct Shortcuts {
  double same_answer = 0, first_byte = 0;
};
Shortcuts shortcuts(const LabelledSequences& train, const LabelledSequences& test);

// How a batch shows sequences.
struct SequenceView {
  int64_t longest = INT64_MAX;  // sequences are cut there
  bool skip_zeros = false;      // bytes of value 0 are left out; the other bytes keep their positions
};

// The length of each sample in token_batch: the length of its sequence, of a pair's longer one.
std::vector<int64_t> sample_lengths(const LabelledSequences& set, SequenceView view);

struct TokenBatch {
  Indices tokens;     // [B,L], byte + 1; padding is 0
  Indices positions;  // [B,L], places in the uncut sequence; 0 at padding
  Indices lengths;    // [B], at least 1: row b is padding from lengths[b] on
  Indices labels;     // [samples]

  auto fields() { return std::tie(tokens, positions, lengths, labels); }  // all tensors
};

// B = samples * per_sample: a pair's sequences are neighbours. L is the length of the longest, rounded up to a multiple
// of 32, but at most view.longest. A sequence without bytes is shown as one byte 0, so that every query has a key.
// Throws if view.longest < 1 or there is no such sample.
TokenBatch token_batch(const LabelledSequences& set, std::span<const int64_t> samples, SequenceView view,
                       Device device = Device::cpu);

}  // namespace runnel
