// Recordings as features, their transcripts as labels: sets in memory, spelling, and batches.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/speech/fbank.h"
#include "engine/tensor.h"

namespace runnel {

// The symbols of a model, and how words are made of them. Symbol 0 is the blank of connectionist temporal
// classification.
class Spelling {
 public:
  struct Word {
    std::string text;
    std::vector<int32_t> labels;
  };

  // Symbols are characters, those of these texts; each space counts as one.
  static Spelling characters(const std::vector<std::string>& texts);
  // Symbols are words.
  static Spelling words(const std::vector<std::string>& words);
  // Symbols are phones: lines of a word and its phones, separated by blanks; of several lines for a word, the first
  // counts. Throws Error that names the line if it is not such a line.
  static Spelling lexicon(const std::vector<std::string>& lines);
  // As it was saved: symbols and words.
  Spelling(std::vector<std::string> symbols, std::vector<Word> words);

  const std::vector<std::string>& symbols() const { return symbols_; }
  const std::vector<Word>& all_words() const { return words_; }  // none: symbols are characters
  // Throws Error that names the word, or the character, that cannot be spelled.
  std::vector<int32_t> labels(const std::string& text) const;
  // The text with these labels, or that whose labels are the nearest to them by edit distance.
  std::string text(std::span<const int32_t> labels) const;

 private:
  struct Node {  // of the prefix tree of all words' labels; a node stands behind its parent
    int32_t parent, label;
    int32_t word;  // the first that ends here; -1: none
  };

  std::vector<std::string> symbols_;
  std::vector<Word> words_;
  std::map<std::string, int32_t> label_of_;  // of a symbol
  std::map<std::string, size_t> place_of_;   // of a word in words_
  std::vector<Node> tree_;                   // the root first
};

struct SpeechSet {
  std::string name;                               // printed beside every result
  int64_t bins = 40;                              // features of a frame
  std::vector<float> features = {};               // [frames,bins] of all utterances, one after another
  std::vector<int64_t> first = {0};               // utterance i is frames first[i] .. first[i + 1] - 1
  std::vector<std::vector<int32_t>> labels = {};  // of each utterance
  std::vector<std::string> ids = {}, texts = {};

  int64_t count() const { return std::ssize(labels); }
  int64_t frames(int64_t i) const { return first[static_cast<size_t>(i) + 1] - first[static_cast<size_t>(i)]; }
  std::span<const float> utterance(int64_t i) const {
    return {features.data() + first[static_cast<size_t>(i)] * bins, static_cast<size_t>(frames(i) * bins)};
  }
  void append(std::string id, std::string text, std::vector<int32_t> spelled, std::span<const float> of_frames);
};
uint32_t checksum(const SpeechSet& set);  // CRC-32 of features and labels

struct SpeechData {
  SpeechSet train, validation, test;
};

// Of each feature, over all frames of a set but those of digital silence, which have no spectrum.
struct FeatureStatistics {
  std::vector<float> mean, deviation;
};
FeatureStatistics statistics(const SpeechSet& set);
// In place: less the mean and divided by the deviation. Digital silence becomes a quiet frame.
void normalise(std::span<float> features, const FeatureStatistics& statistics);
// The same with the statistics of these frames alone.
void normalise(std::span<float> features, int64_t bins);

// The features of a recording as it comes: in the end, those that speech_batch makes of the whole.
class FeatureStream {
 public:
  // All of these must outlive it.
  FeatureStream(const Fbank& fbank, const FeatureStatistics& statistics, int64_t stack)
      : fbank_(fbank), statistics_(statistics), stack_(stack) {}

  // The rows that these samples, which follow the last ones, complete. -> [rows,stack*bins]
  std::vector<float> next(std::span<const float> samples);
  // The last row, which frames that are left fill in part, if there are any.
  std::vector<float> last();

 private:
  std::vector<float> features(std::span<const float> samples) const;

  const Fbank& fbank_;
  const FeatureStatistics& statistics_;
  const int64_t stack_;
  std::vector<float> samples_;  // of frames that no row has yet
};

struct SpeechBatch {
  Tensor features;         // [B,T,stack*bins], 0 behind the last frame
  Indices lengths;         // [B]: stacked frames, of which the last may be in part padding
  Indices targets;         // [B,U], 0 behind the last label
  Indices target_lengths;  // [B]
  int64_t frames, labels;  // of all, without padding
};
// `stack` frames become one. T is the largest number of these, rounded up to a multiple of 16, but at most `longest`,
// which no utterance exceeds; U that of labels, at least 1.
SpeechBatch speech_batch(const SpeechSet& set, std::span<const int64_t> utterances, int64_t longest, int64_t stack = 1);

}  // namespace runnel
