#include "datasets/speech/digit_strings.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "datasets/cache_file.h"
#include "datasets/speech/audio.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/random.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr int64_t rate = 8000;
constexpr std::array<const char*, 10> digit_names{"zero", "one", "two",   "three", "four",
                                                  "five", "six", "seven", "eight", "nine"};

struct Recording {
  int digit, index;
  std::string name;  // without .wav
  std::vector<float> samples;
};

struct Speaker {
  std::string name;
  std::vector<Recording> recordings;
  float silence = 0;  // deviation of the samples where it is quiet
};

// The deviation that a twentieth of the windows of 10 ms stay below.
float quiet_deviation(const std::vector<Recording>& recordings) {
  constexpr size_t window = rate / 100;
  std::vector<double> deviations;
  for (const Recording& r : recordings)
    for (size_t first = 0; first + window <= r.samples.size(); first += window) {
      double sum = 0, squares = 0;
      for (size_t i = first; i < first + window; ++i) {
        sum += r.samples[i];
        squares += static_cast<double>(r.samples[i]) * r.samples[i];
      }
      deviations.push_back(std::sqrt(std::max(squares / window - sum / window * (sum / window), 0.0)));
    }
  const auto at = deviations.begin() + std::ssize(deviations) / 20;
  std::nth_element(deviations.begin(), at, deviations.end());
  return static_cast<float>(*at);
}

std::vector<fs::path> recordings_in(const fs::path& data) {
  for (const char* folder : {"recordings", "free-spoken-digit-dataset/recordings", "fsdd/recordings", "."}) {
    std::vector<fs::path> files;
    for (const fs::path& path : entries(data / folder))
      if (path.extension() == ".wav") files.push_back(path);
    std::sort(files.begin(), files.end());
    if (!files.empty()) return files;
  }
  fail("the Free Spoken Digit Dataset is not in ", data.string(),
       ": there is no folder recordings with files such as 7_theo_0.wav; datasets/download.sh fsdd fetches it, or give "
       "--data FOLDER");
}

std::vector<Speaker> read_speakers(const fs::path& data, int64_t length,
                                   const std::function<void(int64_t, int64_t)>& progress) {
  const std::vector<fs::path> files = recordings_in(data);
  std::map<std::string, Speaker> speakers;
  for (size_t i = 0; i < files.size(); ++i) {
    if (progress && i % 64 == 0) progress(static_cast<int64_t>(i), std::ssize(files));
    // {digit}_{speaker}_{index}.wav
    const std::string stem = files[i].stem().string();
    const size_t first = stem.find('_'), last = stem.rfind('_');
    const auto is_number = [](std::string_view text) {
      return !text.empty() && text.size() < 6 && text.find_first_not_of("0123456789") == std::string_view::npos;
    };
    check(first == 1 && last > first && is_number(stem.substr(0, first)) && is_number(stem.substr(last + 1)),
          files[i].string(), ": not named as a recording of the Free Spoken Digit Dataset, digit_speaker_index.wav");
    Audio audio = read_audio(files[i], length);
    check(audio.rate == rate, files[i].string(), ": ", audio.rate, " samples per second instead of ", rate);
    Speaker& speaker = speakers[stem.substr(first + 1, last - first - 1)];
    speaker.recordings.push_back({stem[0] - '0', std::stoi(stem.substr(last + 1)), stem, std::move(audio.samples)});
  }
  std::vector<Speaker> all;
  for (auto& [name, speaker] : speakers) {
    speaker.name = name;
    speaker.silence = quiet_deviation(speaker.recordings);
    all.push_back(std::move(speaker));
  }
  return all;
}

struct DigitString {
  const Speaker* speaker;
  std::vector<const Recording*> digits;
  std::vector<int64_t> gaps;  // samples before each digit and behind the last
  Key noise;

  int64_t size() const {  // samples
    int64_t n = std::accumulate(gaps.begin(), gaps.end(), int64_t{0});
    for (const Recording* r : digits) n += std::ssize(r->samples);
    return n;
  }
  std::vector<float> samples() const {
    std::vector<float> all;
    all.reserve(static_cast<size_t>(size()));
    for (size_t i = 0; i < gaps.size(); ++i) {
      for (int64_t n = 0; n < gaps[i]; ++n) all.push_back(speaker->silence * noise.normal(all.size()));
      if (i < digits.size()) all.insert(all.end(), digits[i]->samples.begin(), digits[i]->samples.end());
    }
    return all;
  }
  std::string id() const {
    return joined('+', [](const Recording& r) { return r.name; });
  }
  std::string text() const {
    return joined(' ', [](const Recording& r) { return digit_names[static_cast<size_t>(r.digit)]; });
  }

 private:
  template <class Name>
  std::string joined(char between, const Name& name) const {
    std::string all;
    for (const Recording* r : digits) {
      if (!all.empty()) all += between;
      all += name(*r);
    }
    return all;
  }
};

// Of one speaker's recordings that `is_used` lets through.
DigitString draw_string(const std::vector<const Speaker*>& speakers, const DigitStringOptions& options, Key key,
                        const std::function<bool(const Recording&)>& is_used) {
  uint64_t drawn = 0;
  const auto below = [&](int64_t n) { return static_cast<int64_t>(key.below(drawn++, static_cast<uint32_t>(n))); };
  const Speaker& speaker = *speakers[static_cast<size_t>(below(std::ssize(speakers)))];
  DigitString result{&speaker, {}, {}, key.fold(1)};
  const auto add_gap = [&] { result.gaps.push_back(rate / 20 + below(rate / 4)); };  // 50 to 300 ms
  const int64_t digits = options.shortest + below(options.longest - options.shortest + 1);
  add_gap();
  for (int64_t i = 0; i < digits; ++i) {
    const auto digit = below(10);
    std::vector<const Recording*> choice;
    for (const Recording& r : speaker.recordings)
      if (r.digit == digit && is_used(r)) choice.push_back(&r);
    check(!choice.empty(), "there is no recording of ", digit_names[static_cast<size_t>(digit)], " by ", speaker.name,
          " for this set of digit strings");
    result.digits.push_back(choice[static_cast<size_t>(below(std::ssize(choice)))]);
    add_gap();
  }
  return result;
}

}  // namespace

const std::vector<std::string> digit_lexicon{"zero Z IH R OW", "one W AH N",  "two T UW",     "three TH R IY",
                                             "four F AO R",    "five F AY V", "six S IH K S", "seven S EH V AH N",
                                             "eight EY T",     "nine N AY N"};

SpeechData digit_strings(const fs::path& data, const Spelling& spelling, const DigitStringOptions& options,
                         const fs::path& cache, const std::function<void(int64_t, int64_t)>& progress) {
  const auto& [train, validation, test, shortest, longest, length, seed, held_out] = options;
  check(train > 0 && validation > 0 && test > 0, "digit strings: sets of ", train, ", ", validation, " and ", test,
        " strings; each needs at least 1");
  check(shortest > 0 && shortest <= longest, "digit strings: of ", shortest, " to ", longest, " digits");
  const std::vector<Speaker> speakers = read_speakers(data, length, progress);
  std::vector<const Speaker*> known, tested;
  for (const Speaker& speaker : speakers) (speaker.name == held_out ? tested : known).push_back(&speaker);
  std::string names;
  for (const Speaker& speaker : speakers) names += (names.empty() ? "" : ", ") + speaker.name;
  check(held_out.empty() || !tested.empty(), "digit strings: there is no speaker ", held_out, ", but ", names);
  check(!known.empty(), "digit strings: there is no other speaker than ", held_out);
  if (held_out.empty()) tested = known;

  const std::string name =
      "digit strings, drawn with seed " + std::to_string(seed) + (held_out.empty() ? "" : ", without " + held_out);
  const auto named = [&](const char* part) { return SpeechSet{.name = name + " (" + part + ")"}; };
  const SpeechData empty{named("train"), named("validation"), named("test")};
  SpeechData result = empty;
  struct Part {
    SpeechSet* set;
    const std::vector<const Speaker*>* from;
    int64_t count;
    std::function<bool(const Recording&)> is_used;
  };
  const bool all_known = held_out.empty();
  const std::array<Part, 3> parts{
      {{&result.train, &known, train, [=](const Recording& r) { return r.index >= 10; }},
       {&result.validation, &known, validation, [=](const Recording& r) { return r.index >= 5 && r.index < 10; }},
       {&result.test, &tested, test, [=](const Recording& r) { return !all_known || r.index < 5; }}}};

  // Which recordings make a string is drawn every time; the features are kept.
  const Fbank fbank({.rate = rate});
  std::string title = "1 digit strings " + std::to_string(seed) + " " + held_out;
  for (const int64_t number : {train, validation, test, shortest, longest})
    title.append(" ").append(std::to_string(number));
  uLong content = 0;
  for (const Speaker& speaker : speakers)
    for (const Recording& r : speaker.recordings)
      content = crc32_z(content, reinterpret_cast<const Bytef*>(r.samples.data()), r.samples.size() * sizeof(float));
  const CacheFile file(cache / ("digit-strings-" + std::to_string(seed) + (held_out.empty() ? "" : "-") + held_out),
                       title + " " + std::to_string(content));
  std::array<std::vector<DigitString>, 3> strings;
  for (size_t p = 0; p < parts.size(); ++p)
    for (int64_t n = 0; n < parts[p].count; ++n)
      strings[p].push_back(draw_string(*parts[p].from, options, Key{seed}.fold(100 + p).fold(static_cast<uint64_t>(n)),
                                       parts[p].is_used));
  const auto append = [&](size_t p, const DigitString& own, const std::vector<float>& features) {
    parts[p].set->append(own.id(), own.text(), spelling.labels(own.text()), features);
  };
  const bool kept = !cache.empty() && file.read([&](Archive& archive) {
    std::vector<float> features;
    for (size_t p = 0; p < parts.size(); ++p)
      for (const DigitString& own : strings[p]) {
        features.resize(static_cast<size_t>(fbank.frames(own.size()) * parts[p].set->bins));
        archive.numbers(std::span(features));
        check(std::ranges::all_of(features, [](float x) { return std::isfinite(x); }), "features that are not finite");
        append(p, own, features);
      }
  });
  if (kept) return result;
  result = empty;
  for (size_t p = 0; p < parts.size(); ++p) {
    constexpr size_t at_once = 256;
    for (size_t first = 0; first < strings[p].size(); first += at_once) {
      if (progress) progress(static_cast<int64_t>(first), parts[p].count);
      const auto some = std::span(strings[p]).subspan(first, std::min(at_once, strings[p].size() - first));
      std::vector<std::vector<float>> features(some.size());
#pragma omp parallel for schedule(dynamic)
      for (size_t i = 0; i < some.size(); ++i) features[i] = fbank(some[i].samples());
      for (size_t i = 0; i < some.size(); ++i) append(p, some[i], features[i]);
    }
  }
  if (!cache.empty())
    file.write({as_chars(result.train.features), as_chars(result.validation.features), as_chars(result.test.features)});
  return result;
}

}  // namespace runnel
