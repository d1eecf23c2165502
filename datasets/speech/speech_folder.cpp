#include "datasets/speech/speech_folder.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "datasets/cache_file.h"
#include "datasets/speech/audio.h"
#include "datasets/speech/fbank.h"
#include "engine/check.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

struct Entry {
  fs::path audio;
  std::string id, text, list;  // list: file and line, for messages
};

constexpr std::array<const char*, 3> parts{"train", "validation", "test"};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<Entry> read_tsv(const fs::path& list) {
  std::vector<Entry> entries;
  LineFile file(list);
  for (std::string line; file.next_text(line);) {
    if (line.empty()) continue;
    const std::vector<std::string_view> parts_of = fields(line);
    if (parts_of.size() != 2) file.wrong("not a path, a tab and a text");
    entries.push_back(
        {list.parent_path() / parts_of[0], std::string(parts_of[0]), std::string(parts_of[1]), file.at()});
  }
  return entries;
}

std::vector<Entry> read_jsonl(const fs::path& list) {
  std::vector<Entry> entries;
  LineFile file(list);
  for (std::string line; file.next_text(line);) {
    if (line.empty()) continue;
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    const auto text_of = [&](const char* key) -> std::string {
      if (!json.is_object() || !json.contains(key) || !json[key].is_string())
        file.wrong("not a JSON object with the texts \"audio\" and \"text\"");
      return json[key];
    };
    const std::string audio = text_of("audio");
    entries.push_back({list.parent_path() / audio, audio, text_of("text"), file.at()});
  }
  return entries;
}

// The first word of a line, and the rest, which may be empty.
std::pair<std::string, std::string> split_line(const LineFile& file, const std::string& line) {
  const size_t end = line.find_first_of(" \t"), rest = line.find_first_not_of(" \t", end);
  if (end == 0) file.wrong("not an id and what belongs to it");
  return {line.substr(0, end), rest == std::string::npos ? "" : line.substr(rest)};
}

std::vector<Entry> read_kaldi(const fs::path& folder) {
  check(
      !is_there(folder / "segments"), (folder / "segments").string(),
      ": parts of recordings are not read; write each to a file of its own (Kaldi's extract-segments) and list these");
  std::map<std::string, std::string> texts;
  LineFile text_file(folder / "text");
  for (std::string line; text_file.next_text(line);)
    if (!line.empty()) texts.insert(split_line(text_file, line));
  std::vector<Entry> entries;
  LineFile file(folder / "wav.scp");
  for (std::string line; file.next_text(line);) {
    if (line.empty()) continue;
    const auto [id, audio] = split_line(file, line);
    if (audio.empty()) file.wrong("not an id and a path");
    if (audio.ends_with('|')) file.wrong("a command instead of a file; write its output to a file");
    const auto text = texts.find(id);
    if (text == texts.end()) file.wrong("there is no text of \"" + id + "\" in " + (folder / "text").string());
    entries.push_back({folder / audio, id, text->second, file.at()});
  }
  return entries;
}

std::vector<Entry> read_list(const fs::path& folder, const std::string& part) {
  std::vector<Entry> entries;
  if (is_there(folder / (part + ".tsv")))
    entries = read_tsv(folder / (part + ".tsv"));
  else if (is_there(folder / (part + ".jsonl")))
    entries = read_jsonl(folder / (part + ".jsonl"));
  else if (is_there(folder / part / "wav.scp"))
    entries = read_kaldi(folder / part);
  else
    fail(folder.string(), ": there is no ", part, ".tsv, no ", part, ".jsonl and no ", part, "/wav.scp");
  check(!entries.empty(), folder.string(), ": the list ", part, " is empty");
  return entries;
}

Spelling spelling_of(const fs::path& folder, const std::vector<Entry>& train) {
  if (const fs::path lexicon = folder / "lexicon.txt"; is_there(lexicon)) {
    std::vector<std::string> lines;
    LineFile file(lexicon);
    for (std::string line; file.next_text(line);) lines.push_back(line);
    try {
      return Spelling::lexicon(lines);
    } catch (const Error& error) {
      fail(lexicon.string(), ": ", error.what());
    }
  }
  std::vector<std::string> texts;
  for (const Entry& entry : train) texts.push_back(entry.text);
  return Spelling::characters(texts);
}

}  // namespace

bool is_speech_folder(const fs::path& folder) {
  return is_there(folder / "train.tsv") || is_there(folder / "train.jsonl") || is_there(folder / "train" / "wav.scp");
}

SpeechCorpus read_speech_folder(const fs::path& folder, int64_t length, bool strict, const fs::path& cache,
                                const std::function<void(int64_t, int64_t)>& progress) {
  std::array<std::vector<Entry>, 3> lists;
  for (size_t p = 0; p < parts.size(); ++p) lists[p] = read_list(folder, parts[p]);
  // Not among the braces: g++ 12 destroys a member that is an aggregate twice if the initialiser of a later one throws.
  Spelling spelling = spelling_of(folder, lists[0]);
  SpeechCorpus corpus{SpeechData{}, std::move(spelling), 0, {}};

  // All that the features depend on.
  uLong content = 0;
  const auto add = [&](const std::string& text) {
    content = crc32_z(content, reinterpret_cast<const Bytef*>(text.data()), text.size());
  };
  std::vector<const Entry*> all;
  for (const std::vector<Entry>& list : lists)
    for (const Entry& entry : list) {
      all.push_back(&entry);
      std::error_code ignored;
      const auto time = static_cast<int64_t>(fs::last_write_time(entry.audio, ignored).time_since_epoch().count());
      add(entry.audio.string() + " " + std::to_string(fs::file_size(entry.audio, ignored)) + " " +
          std::to_string(time));
    }
  const std::string place = fs::weakly_canonical(folder).string();
  const CacheFile file(cache / ("speech-" + std::to_string(std::hash<std::string>()(place))),
                       "3 speech " + place + " " + std::to_string(content) + " " + std::to_string(length));

  struct Features {
    std::vector<float> numbers;
    std::string problem;
  };
  std::vector<Features> features(all.size());
  // In the file: the rate, and for each recording its features or, if there are none, its problem.
  const bool kept = !cache.empty() && file.read([&](Archive& archive) {
    archive.number(corpus.rate);
    check(corpus.rate > 0, "a rate of ", corpus.rate);
    for (Features& of : features) {
      archive.array(of.numbers);
      archive.array(of.problem);
      check(of.numbers.empty() != of.problem.empty() && std::ssize(of.numbers) % corpus.data.train.bins == 0,
            of.numbers.size(), " features of a recording");
      check(std::ranges::all_of(of.numbers, [](float x) { return std::isfinite(x); }), "features that are not finite");
    }
  });
  if (!kept) {
    features.assign(all.size(), {});
    corpus.rate = 0;
    std::string problem;
    for (const Entry* entry : all) {
      try {
        corpus.rate = read_audio(entry->audio, length).rate;
        break;
      } catch (const Error& error) {
        if (problem.empty()) problem = error.what();
      }
    }
    check(corpus.rate > 0, folder.string(), ": none of the ", all.size(),
          " recordings can be read; the first: ", problem);
    const Fbank fbank({.rate = corpus.rate});
    constexpr size_t at_once = 256;
    for (size_t first = 0; first < all.size(); first += at_once) {
      if (progress) progress(static_cast<int64_t>(first), std::ssize(all));
      const size_t last = std::min(first + at_once, all.size());
#pragma omp parallel for schedule(dynamic)
      for (size_t i = first; i < last; ++i) {
        try {
          const Audio audio = read_audio(all[i]->audio, length);
          check(audio.rate == corpus.rate, all[i]->audio.string(), ": ", audio.rate,
                " samples per second; others have ", corpus.rate, ", which all must have");
          features[i].numbers = fbank(audio.samples);
        } catch (const std::exception& error) {
          features[i].numbers.clear();
          features[i].problem = error.what();
        }
      }
    }
    std::vector<std::array<int64_t, 2>> counts;
    for (const Features& of : features) counts.push_back({std::ssize(of.numbers), std::ssize(of.problem)});
    std::vector<std::span<const char>> written{{reinterpret_cast<const char*>(&corpus.rate), sizeof corpus.rate}};
    for (size_t i = 0; i < features.size(); ++i)
      for (size_t array = 0; array < 2; ++array)  // as Archive writes them, without a copy
        written.insert(written.end(), {{reinterpret_cast<const char*>(&counts[i][array]), sizeof(int64_t)},
                                       array == 0 ? as_chars(features[i].numbers) : features[i].problem});
    if (!cache.empty()) file.write(written);
  }
  if (!cache.empty()) corpus.cache = file.path();

  size_t next = 0;
  const std::array<SpeechSet*, 3> sets{&corpus.data.train, &corpus.data.validation, &corpus.data.test};
  for (size_t p = 0; p < parts.size(); ++p) {
    sets[p]->name = folder.string() + " (" + parts[p] + ")";
    for (const Entry& entry : lists[p]) {
      const Features& of = features[next++];
      if (!of.problem.empty()) {
        check(!strict, of.problem);
        corpus.skipped.push_back(of.problem);
        continue;
      }
      std::vector<int32_t> labels;
      try {
        labels = corpus.spelling.labels(entry.text);
      } catch (const Error& error) {
        fail(entry.list, ": ", error.what());
      }
      sets[p]->append(entry.id, entry.text, std::move(labels), of.numbers);
    }
    if (sets[p]->count() == 0)
      fail(folder.string(), ": no recording of the list ", parts[p], " can be read; the last: ", corpus.skipped.back());
  }
  return corpus;
}

}  // namespace runnel
