// Spelling, normalisation and batches of speech, and strings of spoken digits.
#include "datasets/speech.h"

#include <set>

#include "datasets/audio.h"
#include "datasets/digit_strings.h"
#include "datasets/speech_folder.h"
#include "tests/audio.h"
#include "tests/check.h"
#include "tests/folder.h"

using namespace runnel;
using namespace runnel::test;

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
  check_fails([] { Spelling::lexicon({"a X", "b"}); }, "lexicon: line 2: \"b\" has no phones");
  check_fails([] { Spelling::lexicon({}); }, "there are no symbols");
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
  write_wav(folder.path / "one.wav", {0, 100, -32768, 32767});
  const Audio one = read_audio(folder.path / "one.wav");
  CHECK(one.samples == std::vector<float>{0, 100, -32768, 32767});
  CHECK(one.rate == 8000);
  CHECK(one.seconds() == 4 / 8000.0);
  write_wav(folder.path / "two.wav", {10, 30, -5, 5}, 16000, 2);
  CHECK(read_audio(folder.path / "two.wav").samples == std::vector<float>{20, 0});
  check_fails([&] { read_audio(folder.path / "none.wav"); }, "none.wav: no recording that can be read: ");
  write_bytes(folder.path / "text.wav", "no recording");
  check_fails([&] { read_audio(folder.path / "text.wav"); }, "text.wav: no recording that can be read: ");
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
  write_wav(folder.path / "recordings" / "1_ann_12.wav", {1, 2}, 16000);
  check_fails([&] { digit_strings(folder.path, phones, few, {}); }, "16000 samples per second instead of 8000");
  write_wav(folder.path / "recordings" / "1_ann_12.wav", {1, 2});
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
  const auto read = [&](bool strict = false) { return read_speech_folder(root, strict, root / "cache"); };
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
  std::filesystem::remove(root / "lexicon.txt");

  write_bytes(root / "train.tsv", "audio/a.wav\tno on\naudio/none.wav\toh\n");
  for (int i = 0; i < 2; ++i) {  // computed, then from the cache
    const SpeechCorpus partial = read();
    CHECK(partial.data.train.count() == 1);
    REQUIRE(partial.skipped.size() == 1);
    CHECK(partial.skipped[0].find("none.wav: no recording that can be read") != std::string::npos);
  }
  check_fails([&] { read(true); }, "none.wav: no recording that can be read");
  write_wav(root / "audio" / "none.wav", std::vector<int16_t>(100));
  CHECK(read().skipped[0].find("shorter than a frame") != std::string::npos);
  write_wav(root / "audio" / "none.wav", std::vector<int16_t>(1000), 16000);
  CHECK(read().skipped[0].find("16000 samples per second; others have 8000") != std::string::npos);

  const auto check_list = [&](const char* list, const std::string& text, const std::string& words) {
    write_bytes(root / list, text);
    check_fails(read, words);
  };
  check_list("train.tsv", "audio/a.wav no\n", "train.tsv:1: not a path, a tab and a text");
  check_list("train.tsv", "", "the list train is empty");
  check_list("train.tsv", "none.wav\tno\n", "no recording of the list train can be read");
  write_bytes(root / "train.tsv", "audio/a.wav\tno\n");
  check_list("validation.jsonl", "{\"audio\": 3}\n", "validation.jsonl:1: not a JSON object with the texts");
  write_bytes(root / "validation.jsonl", "{\"audio\": \"audio/a.wav\", \"text\": \"no\"}\n");
  check_list("test/wav.scp", "first sox a.flac - |\n", "wav.scp:1: a command instead of a file");
  check_list("test/wav.scp", "second a.wav\n", "wav.scp:1: there is no text of \"second\" in ");
  check_list("test/wav.scp", "second\n", "wav.scp:1: not an id and what belongs to it");
  std::filesystem::remove(root / "test" / "wav.scp");
  check_fails(read, "there is no test.tsv, no test.jsonl and no test/wav.scp");
}
