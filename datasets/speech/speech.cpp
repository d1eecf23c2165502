#include "datasets/speech/speech.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "engine/check.h"

namespace runnel {
namespace {

constexpr const char* blank_name = "<blank>";

std::vector<std::string> words_of(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  std::vector<std::string> words;
  for (size_t from = 0; (from = text.find_first_not_of(blanks, from)) != std::string_view::npos;) {
    const size_t to = std::min(text.find_first_of(blanks, from), text.size());
    words.emplace_back(text.substr(from, to - from));
    from = to;
  }
  return words;
}

// The characters of UTF-8.
std::vector<std::string> characters_of(std::string_view text) {
  std::vector<std::string> characters;
  for (const char byte : text) {
    if ((static_cast<unsigned char>(byte) & 0xc0) != 0x80 || characters.empty()) characters.emplace_back();
    characters.back() += byte;
  }
  return characters;
}

}  // namespace

Spelling::Spelling(std::vector<std::string> symbols, std::vector<Word> words)
    : symbols_(std::move(symbols)), words_(std::move(words)) {
  check(symbols_.size() > 1, "spelling: there are no symbols");
  for (size_t i = 0; i < symbols_.size(); ++i) label_of_.emplace(symbols_[i], static_cast<int32_t>(i));
  tree_.push_back({0, 0, -1});
  std::map<std::pair<int32_t, int32_t>, int32_t> children;
  for (size_t i = 0; i < words_.size(); ++i) {
    place_of_.emplace(words_[i].text, i);
    int32_t node = 0;
    for (const int32_t label : words_[i].labels) {
      check(label > 0 && label < std::ssize(symbols_), "spelling: \"", words_[i].text, "\" is made of symbol ", label,
            ", which is not in [1, ", symbols_.size(), ")");
      const auto [child, is_new] = children.try_emplace({node, label}, static_cast<int32_t>(tree_.size()));
      if (is_new) tree_.push_back({node, label, -1});
      node = child->second;
    }
    if (int32_t& word = tree_[static_cast<size_t>(node)].word; node > 0 && word < 0) word = static_cast<int32_t>(i);
  }
}

Spelling Spelling::characters(const std::vector<std::string>& texts) {
  std::set<std::string> all;
  for (const std::string& text : texts)
    for (std::string& character : characters_of(text)) all.insert(std::move(character));
  std::vector<std::string> symbols{blank_name};
  symbols.insert(symbols.end(), all.begin(), all.end());
  return {symbols, {}};
}

Spelling Spelling::words(const std::vector<std::string>& words) {
  std::vector<std::string> symbols{blank_name};
  std::vector<Word> own;
  for (const std::string& word : words) {
    own.push_back({word, {static_cast<int32_t>(symbols.size())}});
    symbols.push_back(word);
  }
  return {symbols, own};
}

Spelling Spelling::lexicon(const std::vector<std::string>& lines) {
  std::vector<std::vector<std::string>> entries;
  std::set<std::string> phones, seen;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::vector<std::string> words = words_of(lines[i]);
    if (words.empty()) continue;
    check(words.size() > 1, "lexicon: line ", i + 1, ": \"", words[0], "\" has no phones");
    if (!seen.insert(words[0]).second) continue;
    phones.insert(words.begin() + 1, words.end());
    entries.push_back(std::move(words));
  }
  std::vector<std::string> symbols{blank_name};
  symbols.insert(symbols.end(), phones.begin(), phones.end());
  std::map<std::string, int32_t> label_of;
  for (size_t i = 1; i < symbols.size(); ++i) label_of[symbols[i]] = static_cast<int32_t>(i);
  std::vector<Word> own;
  for (const std::vector<std::string>& entry : entries) {
    own.push_back({entry[0], {}});
    for (size_t i = 1; i < entry.size(); ++i) own.back().labels.push_back(label_of.at(entry[i]));
  }
  return {symbols, own};
}

std::vector<int32_t> Spelling::labels(const std::string& text) const {
  std::vector<int32_t> labels;
  if (words_.empty()) {
    for (const std::string& character : characters_of(text)) {
      const auto found = label_of_.find(character);
      check(found != label_of_.end(), "\"", character, "\" is not one of the ", symbols_.size() - 1,
            " known characters");
      labels.push_back(found->second);
    }
    return labels;
  }
  for (const std::string& word : words_of(text)) {
    const auto found = place_of_.find(word);
    check(found != place_of_.end(), "the lexicon has no word \"", word, "\"");
    const std::vector<int32_t>& own = words_[found->second].labels;
    labels.insert(labels.end(), own.begin(), own.end());
  }
  return labels;
}

std::string Spelling::text(std::span<const int32_t> labels) const {
  std::string text;
  if (words_.empty()) {
    for (const int32_t label : labels) text += symbols_[static_cast<size_t>(label)];
    return text;
  }
  // Levenshtein's distance of all words at once. Of each node, the least distance of words, and a beginning of one that
  // ends in this node, to the labels so far; the upper half of a number is the distance, the lower half is where that
  // last word began, so that the smallest number is the earliest of the nearest.
  constexpr int64_t one = int64_t{1} << 32, far = one << 30;
  struct Best {
    int64_t distance;
    size_t from;
    int64_t word;  // -1: a label that belongs to no word
  };
  std::vector<Best> best{{0, 0, -1}};  // of words to the labels before each place
  std::vector<int64_t> before(tree_.size(), far), now(tree_.size(), far);
  int64_t root = far;
  for (size_t to = 1; to <= labels.size(); ++to) {
    const int32_t label = labels[to - 1];
    before[0] = root = std::min(root + one, best.back().distance * one + static_cast<int64_t>(to - 1));
    int64_t nearest = best.back().distance * one + one + static_cast<int64_t>(to), word = -1;
    for (size_t i = 1; i < tree_.size(); ++i) {
      const Node& node = tree_[i];
      const auto parent = static_cast<size_t>(node.parent);
      before[i] = std::min(before[i], before[parent] + one);
      now[i] = std::min({before[parent] + (node.label == label ? 0 : one), before[i] + one, now[parent] + one});
      if (node.word < 0 || now[i] > nearest || (now[i] == nearest && node.word > word)) continue;
      nearest = now[i];
      word = node.word;
    }
    best.push_back({nearest / one, word < 0 ? to - 1 : static_cast<size_t>(nearest % one), word});
    std::swap(before, now);
    now[0] = far;
  }
  std::vector<int64_t> words;
  for (size_t at = labels.size(); at > 0; at = best[at].from)
    if (best[at].word >= 0) words.push_back(best[at].word);
  for (auto word = words.rbegin(); word != words.rend(); ++word)
    text += (text.empty() ? "" : " ") + words_[static_cast<size_t>(*word)].text;
  return text;
}

void SpeechSet::append(std::string id, std::string text, std::vector<int32_t> spelled,
                       std::span<const float> of_frames) {
  features.insert(features.end(), of_frames.begin(), of_frames.end());
  first.push_back(std::ssize(features) / bins);
  labels.push_back(std::move(spelled));
  ids.push_back(std::move(id));
  texts.push_back(std::move(text));
}

uint32_t checksum(const SpeechSet& set) {
  uLong crc = 0;
  const auto add = [&](const auto& values) {
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(values.data()), values.size() * sizeof values[0]);
  };
  add(set.features);
  add(set.first);
  for (const std::vector<int32_t>& labels : set.labels) add(labels);
  return static_cast<uint32_t>(crc);
}

namespace {

bool is_silent(std::span<const float> frame) {
  return std::all_of(frame.begin(), frame.end(), [](float x) { return x == digital_silence; });
}

template <class Use>
void for_each_sounding_frame(std::span<const float> features, size_t bins, const Use& use) {
  for (; !features.empty(); features = features.subspan(bins))
    if (const auto frame = features.first(bins); !is_silent(frame)) use(frame);
}

FeatureStatistics statistics_of(std::span<const float> features, int64_t bins) {
  const auto n = static_cast<size_t>(bins);
  std::vector<double> sums(n), squares(n);
  double frames = 0;
  for_each_sounding_frame(features, n, [&](std::span<const float> frame) {
    for (size_t i = 0; i < n; ++i) sums[i] += frame[i];
    ++frames;
  });
  frames = std::max(frames, 1.0);
  FeatureStatistics result;
  for (const double sum : sums) result.mean.push_back(static_cast<float>(sum / frames));
  for_each_sounding_frame(features, n, [&](std::span<const float> frame) {
    for (size_t i = 0; i < n; ++i) {
      const double x = static_cast<double>(frame[i]) - static_cast<double>(result.mean[i]);
      squares[i] += x * x;
    }
  });
  constexpr double least = 1e-5;  // a feature that never changes stays 0
  for (const double square : squares)
    result.deviation.push_back(static_cast<float>(std::max(std::sqrt(square / frames), least)));
  return result;
}

}  // namespace

FeatureStatistics statistics(const SpeechSet& set) { return statistics_of(set.features, set.bins); }

void normalise(std::span<float> features, const FeatureStatistics& s) {
  constexpr float quiet = -1;  // as pauses are in recordings with some noise
  for (size_t n = s.mean.size(); !features.empty(); features = features.subspan(n)) {
    const auto frame = features.first(n);
    if (is_silent(frame))
      std::fill(frame.begin(), frame.end(), quiet);
    else
      for (size_t i = 0; i < n; ++i) frame[i] = (frame[i] - s.mean[i]) / s.deviation[i];
  }
}

void normalise(std::span<float> features, int64_t bins) { normalise(features, statistics_of(features, bins)); }

std::vector<float> FeatureStream::features(std::span<const float> samples) const {
  std::vector<float> all = fbank_(samples);
  normalise(all, statistics_);
  return all;
}

std::vector<float> FeatureStream::next(std::span<const float> samples) {
  samples_.insert(samples_.end(), samples.begin(), samples.end());
  const int64_t rows = fbank_.frames(std::ssize(samples_)) / stack_, shift = stack_ * fbank_.shift();
  if (rows == 0) return {};
  const int64_t used = (rows * stack_ - 1) * fbank_.shift() + fbank_.window();
  std::vector<float> all = features(std::span(samples_).first(static_cast<size_t>(used)));
  samples_.erase(samples_.begin(), samples_.begin() + rows * shift);
  return all;
}

std::vector<float> FeatureStream::last() {
  std::vector<float> row = features(std::exchange(samples_, {}));
  if (!row.empty()) row.resize(statistics_.mean.size() * static_cast<size_t>(stack_));
  return row;
}

SpeechBatch speech_batch(const SpeechSet& set, std::span<const int64_t> utterances, int64_t longest, int64_t stack) {
  constexpr int64_t multiple = 16;
  const auto stacked = [&](int64_t n) { return (n + stack - 1) / stack; };
  const auto count = std::ssize(utterances);
  int64_t length = 1, most = 1, frames = 0, labels = 0;
  for (const int64_t i : utterances) {
    check(i >= 0 && i < set.count(), "speech_batch: there is no utterance ", i, " of ", set.count());
    const int64_t own = std::ssize(set.labels[static_cast<size_t>(i)]);
    length = std::max(length, stacked(set.frames(i)));
    most = std::max(most, own);
    frames += set.frames(i);
    labels += own;
  }
  length = std::min((length + multiple - 1) / multiple * multiple, longest);
  std::vector<float> features(static_cast<size_t>(count * length * stack * set.bins));
  std::vector<int32_t> lengths, targets(static_cast<size_t>(count * most)), target_lengths;
  for (int64_t b = 0; b < count; ++b) {
    const int64_t i = utterances[static_cast<size_t>(b)];
    const std::span<const float> own = set.utterance(i);
    std::copy(own.begin(), own.end(), features.begin() + b * length * stack * set.bins);
    lengths.push_back(static_cast<int32_t>(stacked(set.frames(i))));
    const std::vector<int32_t>& spelled = set.labels[static_cast<size_t>(i)];
    std::copy(spelled.begin(), spelled.end(), targets.begin() + b * most);
    target_lengths.push_back(static_cast<int32_t>(spelled.size()));
  }
  return {Tensor(Shape{count, length, stack * set.bins}, features),
          Indices(Shape{count}, lengths),
          Indices(Shape{count, most}, targets),
          Indices(Shape{count}, target_lengths),
          frames,
          labels};
}

}  // namespace runnel
