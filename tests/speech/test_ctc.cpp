#include "models/speech/ctc.h"

#include <map>

#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<int32_t> labels_of(const std::vector<Spike>& spikes) {
  std::vector<int32_t> labels;
  for (const Spike& spike : spikes) labels.push_back(spike.label);
  return labels;
}

// Logits that make these symbols certain, one for each frame.
std::vector<float> certain(const std::vector<int32_t>& symbols, int64_t count) {
  std::vector<float> z(symbols.size() * static_cast<size_t>(count), 0);
  for (size_t t = 0; t < symbols.size(); ++t) z[t * static_cast<size_t>(count) + static_cast<size_t>(symbols[t])] = 20;
  return z;
}

}  // namespace

TEST_CASE("fewest_frames: one for each label, and a blank between equal ones") {
  CHECK(fewest_frames({}) == 0);
  CHECK(fewest_frames(std::vector<int32_t>{1, 2, 1}) == 3);
  CHECK(fewest_frames(std::vector<int32_t>{2, 2, 2}) == 5);
}

TEST_CASE(
    "best_alignment: repeated symbols are merged, blanks dropped, the frame of the largest probability is named") {
  CHECK(labels_of(best_alignment(certain({0, 1, 1, 0, 1, 2, 2, 0}, 3), 3)) == std::vector<int32_t>{1, 1, 2});
  CHECK(labels_of(best_alignment(certain({2, 0, 2, 0, 0, 1}, 3), 3, 2)) == std::vector<int32_t>{0, 0, 1});
  CHECK(best_alignment(certain({0, 0}, 3), 3).empty());
  CHECK(best_alignment({}, 3).empty());
  const std::vector<float> z{0, 1, 0, 3, 0, 2};  // two symbols; label 1 in each frame
  const std::vector<Spike> spikes = best_alignment(z, 2);
  REQUIRE(spikes.size() == 1);
  CHECK(spikes[0].frame == 1);
  CHECK(std::abs(spikes[0].probability - 1 / (1 + std::exp(-3.0))) < 1e-12);
}

TEST_CASE("confidence: of the labels or, where there are none, of the blank at each frame") {
  const auto logits = [](double p, double q) {  // of symbol 1 at two frames, of two symbols
    return std::vector<float>{0, static_cast<float>(std::log(p / (1 - p))), 0,
                              static_cast<float>(std::log(q / (1 - q)))};
  };
  const auto sure = [](const std::vector<float>& z) { return confidence(best_alignment(z, 2), z, 2); };
  CHECK(std::abs(sure(logits(0.2, 0.9)) - 0.9) < 1e-6);
  CHECK(std::abs(sure(logits(0.4, 0.1)) - std::sqrt(0.6 * 0.9)) < 1e-6);
  CHECK(sure({}) == 1);
}

TEST_CASE("beam_search: wide beams find the most probable labels of all, unlike the best alignment") {
  // Two frames, a blank and one label: the best alignment is blank blank with 0.36, the label has 1 - 0.36.
  const std::vector<float> z{std::log(0.6f), std::log(0.4f), std::log(0.6f), std::log(0.4f)};
  CHECK(best_alignment(z, 2).empty());
  CHECK(beam_search(z, 2, 4) == std::vector<int32_t>{1});

  constexpr int64_t frames = 5, symbols = 3;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> logits = random_tensor(Shape{frames, symbols}, seed, -2, 2).to_vector();
    std::map<std::vector<int32_t>, double> probability;  // by summing over all alignments
    for (int64_t n = 0; n < 243; ++n) {
      std::vector<int32_t> labels;
      int32_t before = 0;
      double product = 1;
      int64_t rest = n;
      for (int64_t t = 0; t < frames; ++t, rest /= symbols) {
        const auto symbol = static_cast<int32_t>(rest % symbols);
        double sum = 0;
        for (int64_t k = 0; k < symbols; ++k) sum += std::exp(logits[static_cast<size_t>(t * symbols + k)]);
        product *= std::exp(logits[static_cast<size_t>(t * symbols + symbol)]) / sum;
        if (symbol != 0 && symbol != before) labels.push_back(symbol);
        before = symbol;
      }
      probability[labels] += product;
    }
    const auto best = std::max_element(probability.begin(), probability.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    CHECK(beam_search(logits, symbols, 300) == best->first);
  }
  CHECK(beam_search(certain({0, 1, 1, 0, 1, 2, 2, 0}, 3), 3, 1) == std::vector<int32_t>{1, 1, 2});
  CHECK(beam_search({}, 3, 1).empty());
  check_fails([&] { beam_search(z, 2, 0); }, "beam_search: the width 0 is not positive");
}

TEST_CASE("edit_distance: counts, and the rate over a corpus") {
  const auto counts = [](const std::vector<int32_t>& reference, const std::vector<int32_t>& hypothesis) {
    const EditDistance d = edit_distance(reference, hypothesis);
    return std::vector<int64_t>{d.substitutions, d.deletions, d.insertions, d.reference};
  };
  CHECK(counts({1, 2, 3}, {1, 2, 3}) == std::vector<int64_t>{0, 0, 0, 3});
  CHECK(counts({1, 2, 3}, {1, 4, 3}) == std::vector<int64_t>{1, 0, 0, 3});
  CHECK(counts({1, 2, 3}, {1, 3}) == std::vector<int64_t>{0, 1, 0, 3});
  CHECK(counts({1, 3}, {1, 2, 3}) == std::vector<int64_t>{0, 0, 1, 2});
  CHECK(counts({}, {5, 5}) == std::vector<int64_t>{0, 0, 2, 0});
  CHECK(counts({5, 5}, {}) == std::vector<int64_t>{0, 2, 0, 2});
  CHECK(counts({1, 2, 3, 4, 5, 6}, {2, 3, 9, 5, 6, 7}) == std::vector<int64_t>{1, 1, 1, 6});
  EditDistance all = edit_distance(std::vector<int32_t>{1, 2, 3, 4}, std::vector<int32_t>{1, 2, 3, 4});
  all += edit_distance(std::vector<int32_t>{1}, std::vector<int32_t>{2});
  CHECK(all.rate() == 20);  // the mean of the two rates would be 50
  CHECK(EditDistance{}.rate() == 0);
}
