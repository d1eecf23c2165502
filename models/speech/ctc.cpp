#include "models/speech/ctc.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/check.h"

namespace runnel {
namespace {

constexpr double impossible = -std::numeric_limits<double>::infinity();

double log_sum(double a, double b) {
  const double largest = std::max(a, b);
  return largest == impossible ? impossible : largest + std::log(std::exp(a - largest) + std::exp(b - largest));
}

std::vector<double> log_probabilities(std::span<const float> z) {
  const double largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const float x : z) sum += std::exp(x - largest);
  std::vector<double> result;
  for (const float x : z) result.push_back(x - largest - std::log(sum));
  return result;
}

}  // namespace

int64_t fewest_frames(std::span<const int32_t> labels) {
  int64_t frames = std::ssize(labels);
  for (size_t i = 1; i < labels.size(); ++i) frames += labels[i] == labels[i - 1];
  return frames;
}

std::vector<Spike> best_alignment(std::span<const float> logits, int64_t symbols, int32_t blank) {
  std::vector<Spike> labels;
  int32_t before = blank;
  const int64_t frames = std::ssize(logits) / symbols;
  for (int64_t t = 0; t < frames; ++t) {
    const std::vector<double> p =
        log_probabilities(logits.subspan(static_cast<size_t>(t * symbols), static_cast<size_t>(symbols)));
    const auto best = static_cast<int32_t>(std::max_element(p.begin(), p.end()) - p.begin());
    const double probability = std::exp(p[static_cast<size_t>(best)]);
    if (best != blank && best != before)
      labels.push_back({best, t, probability});
    else if (best != blank && probability > labels.back().probability)
      labels.back() = {best, t, probability};
    before = best;
  }
  return labels;
}

double confidence(std::span<const Spike> alignment, std::span<const float> logits, int64_t symbols, int32_t blank) {
  double sum = 0;
  auto count = std::ssize(alignment);
  for (const Spike& spike : alignment) sum += std::log(spike.probability);
  if (count == 0)
    for (const auto n = static_cast<size_t>(symbols); !logits.empty(); logits = logits.subspan(n), ++count)
      sum += log_probabilities(logits.first(n))[static_cast<size_t>(blank)];
  return count ? std::exp(sum / static_cast<double>(count)) : 1;
}

std::vector<int32_t> beam_search(std::span<const float> logits, int64_t symbols, int64_t width, int32_t blank) {
  check(width > 0, "beam_search: the width ", width, " is not positive");
  // Prefixes are nodes of a tree: the label at the end, and the prefix before it.
  struct Node {
    int64_t parent;
    int32_t label;
  };
  struct Beam {  // log of the probability of the alignments that end in a blank, and in the label
    double blank = impossible, label = impossible;
    double total() const { return log_sum(blank, label); }
  };
  std::vector<Node> nodes{{-1, -1}};
  std::map<std::pair<int64_t, int32_t>, int64_t> children;
  const auto child = [&](int64_t node, int32_t label) {
    const auto [found, is_new] = children.try_emplace({node, label}, std::ssize(nodes));
    if (is_new) nodes.push_back({node, label});
    return found->second;
  };
  std::vector<std::pair<int64_t, Beam>> beams{{0, {.blank = 0}}};
  const int64_t frames = std::ssize(logits) / symbols;
  for (int64_t t = 0; t < frames; ++t) {
    const std::vector<double> p =
        log_probabilities(logits.subspan(static_cast<size_t>(t * symbols), static_cast<size_t>(symbols)));
    std::map<int64_t, Beam> next;
    for (const auto& [node, beam] : beams) {
      const double total = beam.total();
      const int32_t last = nodes[static_cast<size_t>(node)].label;
      Beam& same = next[node];
      same.blank = log_sum(same.blank, total + p[static_cast<size_t>(blank)]);
      if (last >= 0) same.label = log_sum(same.label, beam.label + p[static_cast<size_t>(last)]);
      for (int32_t k = 0; k < symbols; ++k) {
        if (k == blank) continue;
        // A label that is repeated needs a blank in between.
        const double before = k == last ? beam.blank : total;
        if (before == impossible) continue;
        Beam& longer = next[child(node, k)];
        longer.label = log_sum(longer.label, before + p[static_cast<size_t>(k)]);
      }
    }
    beams.assign(next.begin(), next.end());
    const auto kept = std::min<int64_t>(std::ssize(beams), width);
    std::partial_sort(beams.begin(), beams.begin() + kept, beams.end(),
                      [](const auto& a, const auto& b) { return a.second.total() > b.second.total(); });
    beams.resize(static_cast<size_t>(kept));
  }
  std::vector<int32_t> labels;
  for (int64_t node = beams[0].first; node > 0; node = nodes[static_cast<size_t>(node)].parent)
    labels.push_back(nodes[static_cast<size_t>(node)].label);
  std::reverse(labels.begin(), labels.end());
  return labels;
}

EditDistance& EditDistance::operator+=(const EditDistance& other) {
  substitutions += other.substitutions;
  deletions += other.deletions;
  insertions += other.insertions;
  reference += other.reference;
  return *this;
}

EditDistance edit_distance(std::span<const int32_t> reference, std::span<const int32_t> hypothesis) {
  const size_t columns = hypothesis.size() + 1;
  std::vector<EditDistance> row(columns);  // of the references up to here, and the hypotheses of each length
  for (size_t j = 0; j < columns; ++j) row[j].insertions = static_cast<int64_t>(j);
  for (const int32_t truth : reference) {
    EditDistance diagonal = row[0];
    ++row[0].deletions;
    for (size_t j = 1; j < columns; ++j) {
      EditDistance best = diagonal, deleted = row[j], inserted = row[j - 1];
      best.substitutions += truth != hypothesis[j - 1];
      ++deleted.deletions;
      ++inserted.insertions;
      if (deleted.errors() < best.errors()) best = deleted;
      if (inserted.errors() < best.errors()) best = inserted;
      diagonal = row[j];
      row[j] = best;
    }
  }
  row.back().reference = std::ssize(reference);
  return row.back();
}

}  // namespace runnel
