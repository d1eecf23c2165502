// Decoding of models trained with ctc_loss: labels from their frames, and how far they are from the truth.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace runnel {

struct Spike {  // a label of the best alignment
  int32_t label;
  int64_t frame;       // where it is most probable
  double probability;  // there
};

// Frames that an alignment of these labels has at least: one for each, and a blank between equal ones.
int64_t fewest_frames(std::span<const int32_t> labels);

// The best alignment, decoded greedily: the most probable symbol of each frame, repeated ones merged, blanks dropped.
// logits [frames,symbols].
std::vector<Spike> best_alignment(std::span<const float> logits, int64_t symbols, int32_t blank = 0);

// How sure the best alignment is: the geometric mean of its labels' probabilities or, if it has none, of the blank's at
// each frame; 1 without frames.
double confidence(std::span<const Spike> alignment, std::span<const float> logits, int64_t symbols, int32_t blank = 0);

// The most probable labels, about: prefix beam search (Graves 2012; Hannun et al. 2014), which sums the probabilities
// of all alignments of the `width` best prefixes. Throws Error if width < 1.
std::vector<int32_t> beam_search(std::span<const float> logits, int64_t symbols, int64_t width, int32_t blank = 0);

// Levenshtein's distance and its three parts.
struct EditDistance {
  int64_t substitutions = 0, deletions = 0, insertions = 0;  // deletions: missing from the hypothesis
  int64_t reference = 0;                                     // length of it

  int64_t errors() const { return substitutions + deletions + insertions; }
  // In per cent of the reference; summed over a corpus, its error rate.
  double rate() const { return reference ? 100 * static_cast<double>(errors()) / static_cast<double>(reference) : 0; }
  EditDistance& operator+=(const EditDistance& other);
};
EditDistance edit_distance(std::span<const int32_t> reference, std::span<const int32_t> hypothesis);

}  // namespace runnel
