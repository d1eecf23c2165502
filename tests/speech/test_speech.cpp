// Spelling, normalisation and batches of speech, and strings of spoken digits.
#include "datasets/speech/speech.h"

#include <sndfile.h>
#include <sys/stat.h>

#include <set>

#include "datasets/speech/audio.h"
#include "datasets/speech/digit_strings.h"
#include "datasets/speech/speech_folder.h"
#include "tests/check.h"
#include "tests/folder.h"
#include "tests/speech/audio.h"

using namespace runnel;
using namespace runnel::test;

namespace {

constexpr int64_t length = 3000;

std::vector<float> tone(int count, double angle = 0.1) {
  std::vector<float> samples;
  for (int n = 0; n < count; ++n) samples.push_back(0.5f * static_cast<float>(std::sin(angle * n)));
  return samples;
}

// False if libsndfile has no such format.
bool write_recording(const std::filesystem::path& path, int format, const std::vector<float>& samples,
                     int rate = 8000) {
  SF_INFO info{};
  info.samplerate = rate;
  info.channels = 1;
  info.format = format;
  SNDFILE* const file = sf_open(path.c_str(), SFM_WRITE, &info);
  if (!file) return false;
  sf_writef_float(file, samples.data(), std::ssize(samples));
  sf_close(file);
  return true;
}

}  // namespace

TEST_CASE("spelling: characters, words and phones, and the text that labels are nearest to") {
  const Spelling characters = Spelling::characters({"to go", "gr\xc3\xbc\xc3\x9f"});
  CHECK(characters.symbols() == std::vector<std::string>{"<blank>", " ", "g", "o", "r", "t", "\xc3\x9f", "\xc3\xbc"});
  CHECK(characters.labels("go t") == std::vector<int32_t>{2, 3, 1, 5});
  CHECK(characters.text(std::vector<int32_t>{2, 4, 7, 6}) == "gr\xc3\xbc\xc3\x9f");
  check_fails([&] { characters.labels("gas"); }, "\"a\" is not one of the 7 known characters");

  const Spelling words = Spelling::words({"yes", "no"});
  CHECK(words.labels("no  yes no") == std::vector<int32_t>{2, 1, 2});
  CHECK(words.text(std::vector<int32_t>{1, 1, 2}) == "yes yes no");
  CHECK(words.text({}).empty());
  check_fails([&] { words.labels("maybe"); }, "the lexicon has no word \"maybe\"");

  const Spelling phones = Spelling::lexicon(digit_lexicon);
  CHECK(phones.symbols().size() == 20);
  const std::vector<int32_t> spelled = phones.labels("one nine seven seven");
  CHECK(spelled.size() == 3 + 3 + 5 + 5);
  CHECK(phones.text(spelled) == "one nine seven seven");
  std::vector<int32_t> damaged = spelled;
  damaged.erase(damaged.begin() + 8);  // of seven
  damaged[0] = damaged[1];             // of one
  CHECK(phones.text(damaged) == "one nine seven seven");

  CHECK(Spelling::lexicon({"a X Y", "", "a Y"}).labels("a").size() == 2);  // the first counts
  const Spelling two = Spelling::lexicon({"a X Y", "b Z"});
  CHECK(two.text(std::vector<int32_t>{two.labels("a")[1]}) == "a");  // the first label is missing
  check_fails([] { Spelling::lexicon({"a X", "b"}); }, "lexicon: line 2: \"b\" has no phones");
  check_fails([] { Spelling::lexicon({}); }, "there are no symbols");
}

TEST_CASE("spelling: the text is the first of those whose labels are nearest") {
  // Beside all texts of up to four words.
  const std::vector<std::vector<int32_t>> words{{1, 2}, {2}, {1, 2, 3, 3}, {3, 1}, {1, 2}};
  std::vector<Spelling::Word> named;
  for (size_t i = 0; i < words.size(); ++i) named.push_back({std::string(1, static_cast<char>('a' + i)), words[i]});
  const Spelling spelling({"<blank>", "x", "y", "z"}, named);
  const auto distance = [&](const std::vector<int32_t>& labels, const std::string& text) {
    std::vector<int32_t> own;
    for (const char word : text)
      if (word != ' ')
        own.insert(own.end(), words[static_cast<size_t>(word - 'a')].begin(),
                   words[static_cast<size_t>(word - 'a')].end());
    std::vector<size_t> row(own.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (const int32_t label : labels) {
      size_t diagonal = row[0]++;
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t substituted = diagonal + (label != own[j - 1]);
        diagonal = row[j];
        row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
      }
    }
    return row.back();
  };
  std::vector<std::string> texts{""};
  for (size_t i = 0; texts.size() < 1 + 4 + 16 + 64 + 256; ++i)
    for (const char word : {'a', 'b', 'c', 'd'}) texts.push_back(texts[i] + (texts[i].empty() ? "" : " ") + word);
  for (int n = 0; n < 256; ++n) {
    std::vector<int32_t> labels;
    for (int rest = n; rest; rest /= 4)
      if (rest % 4) labels.push_back(rest % 4);
    size_t least = labels.size();
    for (const std::string& text : texts) least = std::min(least, distance(labels, text));
    const std::string found = spelling.text(labels);
    CAPTURE(n);
    CAPTURE(found);
    CHECK(distance(labels, found) == least);
    CHECK(found.find('e') == std::string::npos);  // spelled as a, which comes first
  }
  CHECK(spelling.text(std::vector<int32_t>{3}) == "b");  // one label off: the first word of the nearest
  CHECK(spelling.text(std::vector<int32_t>{1, 2, 3}) == "a");
}

TEST_CASE("normalise: mean 0 and deviation 1 of each feature, and 0 where nothing changes") {
  std::vector<float> features{1, 7, 5, 3, 7, 5, 5, 7, 5};
  normalise(features, 3);
  const float root = std::sqrt(1.5f);
  check_close(Tensor(Shape{9}, features), {-root, 0, 0, 0, 0, 0, root, 0, 0}, rounding);
  SpeechSet set{.name = "", .bins = 2};
  set.append("", "", {}, std::vector<float>{1, 2, 3, 6});
  CHECK(statistics(set).mean == std::vector<float>{2, 4});
  CHECK(statistics(set).deviation == std::vector<float>{1, 2});
}

TEST_CASE("normalise: digital silence changes nothing in the other frames, and is a quiet frame itself") {
  std::vector<float> features{1, 2, 3, 6},
      silent{digital_silence, digital_silence, 1, 2, digital_silence, digital_silence, 3, 6};
  normalise(features, 2);
  normalise(silent, 2);
  CHECK(silent == std::vector<float>{-1, -1, features[0], features[1], -1, -1, features[2], features[3]});
  SpeechSet set{.name = "", .bins = 2};
  set.append("", "", {}, std::vector<float>{1, 2, 3, 6, digital_silence, digital_silence});
  CHECK(statistics(set).mean == std::vector<float>{2, 4});
  std::vector<float> nothing(6, digital_silence);
  normalise(nothing, 2);
  CHECK(nothing == std::vector<float>(6, -1));
}

TEST_CASE("FeatureStream: the rows of the whole recording, however it comes") {
  const Fbank fbank({.rate = 8000});
  const FeatureStatistics statistics{std::vector<float>(40, 3), std::vector<float>(40, 2)};
  constexpr int64_t stack = 4;
  for (const int count : {100, 199, 200, 439, 440, 1000, 1100}) {
    std::vector<float> samples = tone(count);
    for (float& sample : samples) sample *= 1000;
    std::vector<float> whole = fbank(samples);
    normalise(whole, statistics);
    SpeechSet set{.name = ""};
    set.append("", "", {}, whole);
    const std::vector<int64_t> only{0};
    const SpeechBatch batch = speech_batch(set, only, length, stack);
    std::vector<float> expected = batch.features.to_vector();
    expected.resize(static_cast<size_t>(batch.lengths.data()[0]) * 160);
    for (const int at_once : {1, 7, 90, 5000}) {
      FeatureStream stream(fbank, statistics, stack);
      std::vector<float> rows;
      const auto append = [&](const std::vector<float>& more) { rows.insert(rows.end(), more.begin(), more.end()); };
      for (int at = 0; at < count; at += at_once)
        append(stream.next({samples.data() + at, static_cast<size_t>(std::min(at_once, count - at))}));
      append(stream.last());
      CAPTURE(count);
      CAPTURE(at_once);
      CHECK(rows == expected);
    }
  }
}

TEST_CASE("speech_batch: padding of frames and labels; several frames stacked to one") {
  SpeechSet set{.name = "", .bins = 2};
  set.append("a", "", {1, 2, 3}, std::vector<float>(2 * 40, 1.0f));
  set.append("b", "", {}, std::vector<float>(2 * 3, 2.0f));
  const std::vector<int64_t> both{1, 0};
  const SpeechBatch batch = speech_batch(set, both, 1000);
  CHECK(batch.features.shape() == Shape{2, 48, 2});
  CHECK(batch.lengths.to_vector() == std::vector<int32_t>{3, 40});
  CHECK(batch.targets.to_vector() == std::vector<int32_t>{0, 0, 0, 1, 2, 3});
  CHECK(batch.target_lengths.to_vector() == std::vector<int32_t>{0, 3});
  CHECK(batch.frames == 43);
  CHECK(batch.labels == 3);
  const std::vector<float> features = batch.features.to_vector();
  CHECK(features[5] == 2);
  CHECK(features[6] == 0);
  CHECK(features[96 + 79] == 1);
  CHECK(features[96 + 80] == 0);
  CHECK(speech_batch(set, both, 45).features.shape() == Shape{2, 45, 2});
  const SpeechBatch stacked = speech_batch(set, both, 1000, 3);
  CHECK(stacked.features.shape() == Shape{2, 16, 6});
  CHECK(stacked.features.to_vector() == features);
  CHECK(stacked.lengths.to_vector() == std::vector<int32_t>{1, 14});
  CHECK(stacked.frames == 43);
  const std::vector<int64_t> other{2};
  check_fails([&] { speech_batch(set, other, 1000); }, "there is no utterance 2 of 2");
}

TEST_CASE("read_audio: samples in units of 16-bit integers, channels averaged") {
  const Folder folder;
  std::vector<int16_t> samples(200);
  samples[1] = 100;
  samples[2] = -32768;
  samples[3] = 32767;
  write_wav(folder.path / "one.wav", samples);
  const Audio one = read_audio(folder.path / "one.wav", length);
  CHECK(one.samples == std::vector<float>(samples.begin(), samples.end()));
  CHECK(one.rate == 8000);
  CHECK(one.seconds() == 200 / 8000.0);
  samples.assign(800, 10);
  for (size_t i = 1; i < 800; i += 2) samples[i] = 30;
  write_wav(folder.path / "two.wav", samples, 16000, 2);
  CHECK(read_audio(folder.path / "two.wav", length).samples == std::vector<float>(400, 20));
}

TEST_CASE("read_audio: what is no recording, or holds no sound") {
  const Folder folder;
  const auto refused = [&](const char* name, const std::string& words) {
    check_fails([&] { read_audio(folder.path / name, length); }, words);
  };
  refused("none.wav", "there is no file ");
  write_bytes(folder.path / "text.wav", "no recording");
  refused("text.wav", "text.wav: no recording that can be read: ");
  REQUIRE(mkfifo((folder.path / "pipe.wav").c_str(), 0600) == 0);
  refused("pipe.wav", "pipe.wav is not a regular file");
  write_wav(folder.path / "short.wav", std::vector<int16_t>(199));
  refused("short.wav", "short.wav: shorter than a frame of 25 ms");
  for (const float wrong : {1e37f, -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> samples = tone(1000);
    samples[17] = wrong;
    write_recording(folder.path / "loud.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, samples);
    refused("loud.wav", "loud.wav: sample 17 is ");
  }
}

TEST_CASE("read_audio: recordings that were cut off are damaged, and those of which nobody knows the length are not") {
  const Folder folder;
  const auto check_whole = [&](const std::filesystem::path& path) {
    CHECK(read_audio(path, length).samples.size() >= 20000);
  };
  const std::pair<const char*, int> formats[] = {{"wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16},
                                                 {"flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16},
                                                 {"ogg", SF_FORMAT_OGG | SF_FORMAT_VORBIS},
                                                 {"mp3", 0x230000 | 0x0082}};  // SF_FORMAT_MPEG of libsndfile 1.1
  for (const auto& [name, format] : formats) {
    const std::filesystem::path whole = folder.path / (std::string("whole.") + name);
    if (!write_recording(whole, format, tone(20000))) {
      MESSAGE("libsndfile writes no " << whole.extension().string());
      continue;
    }
    check_whole(whole);
    const std::string bytes = read_bytes(whole);
    const std::string cut = std::string("cut.") + name;
    write_bytes(folder.path / cut, bytes.substr(0, bytes.size() * 3 / 4));
    check_fails([&] { read_audio(folder.path / cut, length); }, cut + ": damaged: ");
  }
  // A writer to a pipe cannot go back to its header.
  std::string wav = read_bytes(folder.path / "whole.wav"), flac = read_bytes(folder.path / "whole.flac");
  for (const char* const size : {"\xff\xff\xff\xff", "\xff\xff\xff\x7f"}) {
    write_bytes(folder.path / "piped.wav", wav.replace(40, 4, size, 4));
    check_whole(folder.path / "piped.wav");
  }
  flac[21] = static_cast<char>(flac[21] & 0xf0);
  write_bytes(folder.path / "piped.flac", flac.replace(22, 4, 4, '\0'));
  check_whole(folder.path / "piped.flac");
}

TEST_CASE("read_audio: stops at the longest recording that can be used") {
  const Folder folder;
  const std::filesystem::path path = folder.path / "long.flac";
  write_recording(path, SF_FORMAT_FLAC | SF_FORMAT_PCM_16, std::vector<float>(200 + 80 * 100));
  CHECK(Fbank({.rate = 8000}).frames(std::ssize(read_audio(path, 101).samples)) == 101);
  check_fails([&] { read_audio(path, 100); },
              "long.flac: longer than 100 frames of 10 ms, the most that --length allows");
}

TEST_CASE("digit_strings: recordings of each set, the cache, and a speaker who is held out") {
  const Folder folder;
  write_digits(folder.path / "recordings");
  const Spelling phones = Spelling::lexicon(digit_lexicon);
  const DigitStringOptions few{.train = 20, .validation = 5, .test = 8};
  const SpeechData data = digit_strings(folder.path, phones, few, folder.path / "cache");
  CHECK(data.train.count() == 20);
  CHECK(data.validation.count() == 5);
  CHECK(data.test.count() == 8);
  const auto indices = [](const SpeechSet& set) {  // of the recordings
    std::set<std::string> all;
    for (const std::string& id : set.ids)
      for (size_t at = 0; (at = id.find('_', at)) != std::string::npos; ++at) {
        at = id.find('_', at + 1);
        all.insert(id.substr(at + 1, id.find('+', at) - at - 1));
      }
    return all;
  };
  CHECK(indices(data.train) == std::set<std::string>{"10", "11"});
  CHECK(indices(data.validation) == std::set<std::string>{"5"});
  CHECK(indices(data.test) == std::set<std::string>{"0"});
  for (int64_t i = 0; i < data.train.count(); ++i) {
    const auto n = static_cast<size_t>(i);
    CHECK(data.train.labels[n] == phones.labels(data.train.texts[n]));
    const auto digits = 1 + std::count(data.train.ids[n].begin(), data.train.ids[n].end(), '+');
    CHECK(digits >= 3);
    CHECK(digits <= 7);
    CHECK(data.train.frames(i) > 3 * 15 + 4 * 5);
    const bool has_ann = data.train.ids[n].find("ann") != std::string::npos;
    CHECK(has_ann != (data.train.ids[n].find("bob") != std::string::npos));  // one speaker
  }

  const SpeechData again = digit_strings(folder.path, phones, few, folder.path / "cache");
  CHECK(checksum(again.train) == checksum(data.train));
  CHECK(checksum(again.test) == checksum(data.test));
  write_bytes(folder.path / "cache" / "digit-strings-1", "damaged");
  CHECK(checksum(digit_strings(folder.path, phones, few, folder.path / "cache").train) == checksum(data.train));
  std::string impossible = read_bytes(folder.path / "cache" / "digit-strings-1");
  impossible.replace(impossible.size() - 8, 4, "\xff\xff\xff\xff");  // the last feature is NaN
  for (const std::string& bytes : {impossible, impossible.substr(0, impossible.size() - 40), impossible + "more"}) {
    write_cache(folder.path / "cache" / "digit-strings-1", bytes);
    const SpeechData made = digit_strings(folder.path, phones, few, folder.path / "cache");
    CHECK(checksum(made.train) == checksum(data.train));
    CHECK(checksum(made.test) == checksum(data.test));
  }
  DigitStringOptions other = few;
  other.seed = 2;
  CHECK(checksum(digit_strings(folder.path, phones, other, {}).train) != checksum(data.train));

  other.held_out = "bob";
  const SpeechData split = digit_strings(folder.path, phones, other, {});
  for (const std::string& id : split.train.ids) CHECK(id.find("bob") == std::string::npos);
  for (const std::string& id : split.test.ids) CHECK(id.find("ann") == std::string::npos);
  other.held_out = "eve";
  check_fails([&] { digit_strings(folder.path, phones, other, {}); }, "there is no speaker eve");
  check_fails([&] { digit_strings(folder.path / "cache", phones, few, {}); },
              "the Free Spoken Digit Dataset is not in ");
  write_wav(folder.path / "recordings" / "1_ann_12.wav", std::vector<int16_t>(400), 16000);
  check_fails([&] { digit_strings(folder.path, phones, few, {}); }, "16000 samples per second instead of 8000");
  std::filesystem::remove(folder.path / "recordings" / "1_ann_12.wav");
  write_wav(folder.path / "recordings" / "1_eve_12.wav", {1, 2});  // all that eve says
  check_fails([&] { digit_strings(folder.path, phones, few, {}); }, "1_eve_12.wav: shorter than a frame of 25 ms");
  std::filesystem::remove(folder.path / "recordings" / "1_eve_12.wav");
  write_bytes(folder.path / "recordings" / "song.wav", "");
  check_fails([&] { digit_strings(folder.path, phones, few, {}); }, "song.wav: not named as a recording");
}

TEST_CASE("read_speech_folder: three forms of lists, a lexicon, recordings that are skipped, and the cache") {
  const Folder folder;
  const std::filesystem::path& root = folder.path;
  for (const char* name : {"a", "b", "c"}) {
    std::vector<int16_t> samples;
    for (int n = 0; n < 1000; ++n) samples.push_back(static_cast<int16_t>(2000 * std::sin(0.1 * n * name[0])));
    write_wav(root / "audio" / (std::string(name) + ".wav"), samples);
  }
  CHECK(!is_speech_folder(root));
  write_bytes(root / "train.tsv", "audio/a.wav\tno on\naudio/b.wav\toh\n");
  write_bytes(root / "validation.jsonl", "{\"audio\": \"audio/b.wav\", \"text\": \"no\"}\n\n");
  write_bytes(root / "test" / "wav.scp", "first ../audio/c.wav\n");
  write_bytes(root / "test" / "text", "first on on\n");
  CHECK(is_speech_folder(root));
  const auto read = [&](bool strict = false) { return read_speech_folder(root, length, strict, root / "cache"); };
  const SpeechCorpus corpus = read();
  CHECK(corpus.rate == 8000);
  CHECK(corpus.skipped.empty());
  CHECK(corpus.spelling.symbols() == std::vector<std::string>{"<blank>", " ", "h", "n", "o"});
  CHECK(corpus.data.train.count() == 2);
  CHECK(corpus.data.train.frames(1) == 11);
  CHECK(corpus.data.validation.labels[0] == std::vector<int32_t>{3, 4});
  CHECK(corpus.data.test.ids[0] == "first");
  CHECK(corpus.data.test.texts[0] == "on on");
  CHECK(checksum(read().data.train) == checksum(corpus.data.train));  // from the cache

  // What no reader wrote, though the checksum is right: the rate, the number of features, the size of
  // their problem, features.
  const std::filesystem::path cache = *std::filesystem::directory_iterator(root / "cache");
  const std::string whole = read_bytes(cache);
  const size_t rate = whole.find('\n') + 1, problem = rate + 16 + sizeof(float) * 11 * 40;
  for (const size_t at : {rate, rate + 8, problem, rate + 16}) {
    CAPTURE(at);
    std::string impossible = whole;
    impossible.replace(at, 8, std::string(8, '\xff'));
    write_cache(cache, impossible);
    CHECK(read().rate == 8000);
    CHECK(checksum(read().data.train) == checksum(corpus.data.train));
    CHECK(read_bytes(cache) == whole);
  }

  write_bytes(root / "lexicon.txt", "no N OW\non AA N\noh OW\n");
  CHECK(read().spelling.symbols().size() == 4);
  CHECK(read().data.test.labels[0].size() == 4);
  write_bytes(root / "lexicon.txt", "no N OW\non AA N\n");
  check_fails(read, "train.tsv:2: the lexicon has no word \"oh\"");
  write_bytes(root / "lexicon.txt", "no N OW\non\n");
  check_fails(read, "lexicon.txt: lexicon: line 2: \"on\" has no phones");
  write_bytes(root / "lexicon.txt", "");
  check_fails(read, "lexicon.txt: spelling: there are no symbols");
  std::filesystem::remove(root / "lexicon.txt");

  write_bytes(root / "train.tsv", "audio/a.wav\tno on\naudio/none.wav\toh\n");
  for (int i = 0; i < 2; ++i) {  // computed, then from the cache
    const SpeechCorpus partial = read();
    CHECK(partial.data.train.count() == 1);
    REQUIRE(partial.skipped.size() == 1);
    CHECK(partial.skipped[0].find("there is no file ") != std::string::npos);
  }
  check_fails([&] { read(true); }, "there is no file ");
  write_wav(root / "audio" / "none.wav", std::vector<int16_t>(100));
  CHECK(read().skipped[0].find("shorter than a frame") != std::string::npos);
  write_wav(root / "audio" / "none.wav", std::vector<int16_t>(1000), 16000);
  CHECK(read().skipped[0].find("16000 samples per second; others have 8000") != std::string::npos);

  const auto check_list = [&](const char* list, const std::string& text, const std::string& words) {
    write_bytes(root / list, text);
    check_fails(read, words);
  };
  check_list("train.tsv", "audio/a.wav no\n", "train.tsv:1: not a path, a tab and a text");
  check_list("train.tsv", "audio/a.wav\tcaf\xe9\n", "train.tsv:1: \"audio/a.wav\\tcaf\\xe9\" is not UTF-8");
  check_list("train.tsv", "", "the list train is empty");
  check_list("train.tsv", "none.wav\tno\n", "no recording of the list train can be read; the last: there is no file ");
  write_bytes(root / "train.tsv", "audio/a.wav\tno\n");
  check_list("validation.jsonl", "{\"audio\": 3}\n", "validation.jsonl:1: not a JSON object with the texts");
  write_bytes(root / "validation.jsonl", "{\"audio\": \"audio/a.wav\", \"text\": \"no\"}\n");
  check_list("test/wav.scp", "first sox a.flac - |\n", "wav.scp:1: a command instead of a file");
  check_list("test/wav.scp", "second a.wav\n", "wav.scp:1: there is no text of \"second\" in ");
  check_list("test/wav.scp", "second\n", "wav.scp:1: not an id and a path");
  write_bytes(root / "test" / "wav.scp", "first ../audio/a.wav\n");
  write_bytes(root / "test" / "text", "first\n");
  CHECK(read().data.test.labels[0].empty());  // nothing is said
  check_list("test/segments", "second first 0.1 0.2\n", "segments: parts of recordings are not read");
  std::filesystem::remove(root / "test" / "segments");
  for (const char* name : {"a", "b", "c"}) std::filesystem::remove(root / "audio" / (std::string(name) + ".wav"));
  check_fails(read, "recordings can be read; the first: there is no file ");
  std::filesystem::remove(root / "test" / "wav.scp");
  check_fails(read, "there is no test.tsv, no test.jsonl and no test/wav.scp");
}
