#include "datasets/speech.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

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

// Levenshtein's distances of `word` to the labels [from, to), for each `to` from `from` on.
std::vector<int64_t> distances(std::span<const int32_t> word, std::span<const int32_t> labels) {
  std::vector<int64_t> row(labels.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = static_cast<int64_t>(j);
  for (const int32_t symbol : word) {
    int64_t diagonal = row[0]++;
    for (size_t j = 1; j < row.size(); ++j) {
      const int64_t substituted = diagonal + (symbol != labels[j - 1]);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row;
}

}  // namespace

Spelling::Spelling(std::vector<std::string> symbols, std::vector<Word> words)
    : symbols_(std::move(symbols)), words_(std::move(words)) {
  check(symbols_.size() > 1, "spelling: there are no symbols");
  for (size_t i = 0; i < symbols_.size(); ++i) label_of_.emplace(symbols_[i], static_cast<int32_t>(i));
  for (size_t i = 0; i < words_.size(); ++i) {
    place_of_.emplace(words_[i].text, i);
    for (const int32_t label : words_[i].labels)
      check(label > 0 && label < std::ssize(symbols_), "spelling: \"", words_[i].text, "\" is made of symbol ", label,
            ", which is not in [1, ", symbols_.size(), ")");
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
  // The least distance of words to the labels before each place, and the last of these words.
  struct Best {
    int64_t distance, from;
    const Word* word;
  };
  std::vector<Best> best{{0, 0, nullptr}};
  for (size_t to = 1; to <= labels.size(); ++to)
    best.push_back({static_cast<int64_t>(to), static_cast<int64_t>(to) - 1, nullptr});
  for (size_t from = 0; from < labels.size(); ++from) {
    if (best[from].distance + 1 < best[from + 1].distance)  // a label that belongs to no word
      best[from + 1] = {best[from].distance + 1, static_cast<int64_t>(from), nullptr};
    for (const Word& word : words_) {
      const size_t longest = std::min(labels.size() - from, 2 * word.labels.size());
      const std::vector<int64_t> of_word = distances(word.labels, labels.subspan(from, longest));
      for (size_t count = 1; count <= longest; ++count)
        if (Best& other = best[from + count]; best[from].distance + of_word[count] < other.distance ||
                                              (best[from].distance + of_word[count] == other.distance && !other.word))
          other = {best[from].distance + of_word[count], static_cast<int64_t>(from), &word};
    }
  }
  std::vector<const Word*> words;
  for (auto at = std::ssize(labels); at > 0; at = best[static_cast<size_t>(at)].from)
    if (best[static_cast<size_t>(at)].word) words.push_back(best[static_cast<size_t>(at)].word);
  for (auto word = words.rbegin(); word != words.rend(); ++word) text += (text.empty() ? "" : " ") + (*word)->text;
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

FeatureStatistics statistics_of(std::span<const float> features, int64_t bins) {
  const auto n = static_cast<size_t>(bins);
  std::vector<double> sums(n), squares(n);
  for (size_t i = 0; i < features.size(); ++i) sums[i % n] += features[i];
  const double frames = std::max(static_cast<double>(features.size() / n), 1.0);
  FeatureStatistics result;
  for (const double sum : sums) result.mean.push_back(static_cast<float>(sum / frames));
  for (size_t i = 0; i < features.size(); ++i) {
    const double x = static_cast<double>(features[i]) - static_cast<double>(result.mean[i % n]);
    squares[i % n] += x * x;
  }
  constexpr double least = 1e-5;  // a feature that never changes stays 0
  for (const double square : squares)
    result.deviation.push_back(static_cast<float>(std::max(std::sqrt(square / frames), least)));
  return result;
}

}  // namespace

FeatureStatistics statistics(const SpeechSet& set) { return statistics_of(set.features, set.bins); }

void normalise(std::span<float> features, const FeatureStatistics& s) {
  for (size_t i = 0; i < features.size(); ++i)
    features[i] = (features[i] - s.mean[i % s.mean.size()]) / s.deviation[i % s.mean.size()];
}

void normalise(std::span<float> features, int64_t bins) { normalise(features, statistics_of(features, bins)); }

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
