// Classification: batches of tokens, positions, cut and left out bytes, pairs; folders of texts, files of pairs, grey
// images. (ListOps has its own file.)
#include "datasets/lra/labelled.h"

#include <fstream>
#include <map>
#include <set>

#include "datasets/lra/image_sequences.h"
#include "datasets/lra/text_folder.h"
#include "datasets/lra/text_pairs.h"

#include "tests/check.h"
#include "tests/folder.h"

namespace runnel::test {
namespace {

namespace fs = std::filesystem;

// Sequences of these bytes; sample i has label i.
LabelledSequences make(const std::vector<std::vector<uint8_t>>& sequences, int64_t per_sample = 1) {
  LabelledSequences set{"made by hand", {"a", "b", "c", "d"}};
  set.per_sample = per_sample;
  for (const std::vector<uint8_t>& sequence : sequences) set.append(sequence);
  for (int64_t i = 0; i < std::ssize(sequences) / per_sample; ++i) set.labels.push_back(static_cast<int32_t>(i));
  return set;
}

std::vector<int32_t> row(const Indices& x, int64_t b, int64_t columns) {
  const std::vector<int32_t> all = x.to_vector();
  const auto first = all.begin() + b * x.shape()[1];
  return {first, first + columns};
}

using Row = std::vector<int32_t>;

TEST_CASE("token_batch: byte + 1, padding 0 up to a multiple of 32, in the order of the samples") {
  for (const Device device : devices()) {
    const LabelledSequences set = make({{10, 0, 255}, std::vector<uint8_t>(33, 7), {}});
    const TokenBatch batch = token_batch(set, std::vector<int64_t>{2, 0}, {}, device);
    CHECK(batch.tokens.shape() == Shape{2, 32});
    CHECK(batch.positions.shape() == Shape{2, 32});
    CHECK(row(batch.tokens, 0, 3) == Row{1, 0, 0});  // an empty sequence
    CHECK(row(batch.tokens, 1, 5) == Row{11, 1, 256, 0, 0});
    CHECK(row(batch.positions, 1, 5) == Row{0, 1, 2, 0, 0});
    CHECK(batch.lengths.to_vector() == Row{1, 3});
    CHECK(batch.labels.to_vector() == Row{2, 0});
    CHECK(token_batch(set, std::vector<int64_t>{1}, {}, device).tokens.shape() == Shape{1, 64});
    CHECK(token_batch(set, std::vector<int64_t>{1}, {32}, device).tokens.shape() == Shape{1, 32});
    CHECK(token_batch(set, std::vector<int64_t>{1}, {20}, device).tokens.shape() == Shape{1, 20});
    CHECK(token_batch(set, {}, {}, device).tokens.size() == 0);
  }
}

TEST_CASE("token_batch: bytes of value 0 are left out, the others keep their positions; first cut, then left out") {
  const LabelledSequences set = make({{0, 5, 0, 0, 9, 3}, {0, 0}});
  const TokenBatch batch = token_batch(set, std::vector<int64_t>{0, 1}, {5, true});
  CHECK(row(batch.tokens, 0, 4) == Row{6, 10, 0, 0});
  CHECK(row(batch.positions, 0, 4) == Row{1, 4, 0, 0});
  CHECK(row(batch.tokens, 1, 3) == Row{1, 0, 0});
  CHECK(batch.lengths.to_vector() == Row{2, 1});
  CHECK(sample_lengths(set, {5, true}) == std::vector<int64_t>{2, 1});
  CHECK(sample_lengths(set, {5, false}) == std::vector<int64_t>{5, 2});
}

TEST_CASE("token_batch: a pair's sequences are neighbours") {
  const LabelledSequences set = make({{1}, {2, 2}, {3, 3, 3}, {4}}, 2);
  CHECK(set.count() == 2);
  const TokenBatch batch = token_batch(set, std::vector<int64_t>{1, 0}, {});
  CHECK(batch.lengths.to_vector() == Row{3, 1, 1, 2});
  CHECK(batch.labels.to_vector() == Row{1, 0});
  for (int64_t b = 0; b < 4; ++b) CHECK(row(batch.tokens, b, 1) == Row{Row{4, 5, 2, 3}[static_cast<size_t>(b)]});
  CHECK(sample_lengths(set, {}) == std::vector<int64_t>{2, 3});
}

TEST_CASE("token_batch: what cannot be") {
  const LabelledSequences set = make({{1}});
  check_fails([&] { token_batch(set, std::vector<int64_t>{1}, {}); }, "made by hand has 1 samples, but no number 1");
  check_fails([&] { token_batch(set, std::vector<int64_t>{-1}, {}); }, "no number -1");
  check_fails([&] { token_batch(set, std::vector<int64_t>{0}, {0}); }, "cut at a length of 0");
  check_fails([&] { sample_lengths(set, {-3}); }, "cut at a length of -3");
}

TEST_CASE("shortcuts: always the most frequent class, and the one of the first byte") {
  LabelledSequences train = make({{1, 9}, {1}, {1}, {2}, {2, 7}, {2}, {}}), test = make({{1}, {2}, {3}, {}, {2, 1}});
  train.labels = {0, 0, 1, 2, 2, 2, 3};
  test.labels = {0, 2, 2, 3, 1};
  const Shortcuts found = shortcuts(train, test);
  CHECK(found.same_answer == 2 / 5.);  // 2
  CHECK(found.first_byte == 4 / 5.);   // 0 2 2 3 2: byte 3 is not in train
  CHECK(shortcuts(train, make({})).first_byte == 0);
  LabelledSequences pairs = make({{1}, {2}, {2}, {1}}, 2);  // by the first sequence of a pair
  CHECK(shortcuts(pairs, pairs).first_byte == 1);
}

TEST_CASE("checksum of labelled sequences: bytes, lengths and labels count") {
  const uint32_t sum = checksum(make({{1, 2}, {3}}));
  CHECK(sum == checksum(make({{1, 2}, {3}})));
  CHECK(sum != checksum(make({{1}, {2, 3}})));
  CHECK(sum != checksum(make({{1, 2}, {4}})));
  LabelledSequences other = make({{1, 2}, {3}});
  other.labels = {1, 1};
  CHECK(sum != checksum(other));
}

std::string text(const LabelledSequences& set, int64_t sequence) {
  const auto bytes = set.sequence(sequence);
  return {bytes.begin(), bytes.end()};
}

// Each text of a set, with its class.
std::map<std::string, std::string> contents(const LabelledSequences& set) {
  std::map<std::string, std::string> all;
  for (int64_t i = 0; i < set.count(); ++i)
    all[text(set, i)] = set.class_names[static_cast<size_t>(set.labels[static_cast<size_t>(i)])];
  return all;
}

TEST_CASE("text folder: train and test as IMDb's, a tenth of train held out") {
  const Folder folder;
  const fs::path imdb = folder.path / "aclImdb";
  for (int i = 0; i < 15; ++i) {
    const std::string n = std::to_string(i);
    write_bytes(imdb / "train/pos" / (n + ".txt"), "good " + n);
    write_bytes(imdb / "train/neg" / (n + ".txt"), "bad " + n);
    write_bytes(imdb / "train/unsup" / (n + ".txt"), "unknown " + n);
    if (i < 4) write_bytes(imdb / "test/pos" / (n + ".txt"), "nice " + n);
    if (i < 3) write_bytes(imdb / "test/neg" / (n + ".txt"), "poor " + n);
  }
  write_bytes(imdb / "train/labeledBow.feat", "1 2");
  write_bytes(imdb / "train/pos/notes", "no text");
  const ClassificationData data = load_text_folder(folder.path, 100, Key{1});
  CHECK(data.train.class_names == std::vector<std::string>{"neg", "pos"});
  CHECK(data.test.class_names == data.train.class_names);
  CHECK(data.validation.name == "texts of " + imdb.string() + " (validation)");
  CHECK(data.train.count() == 27);
  CHECK(data.validation.count() == 3);
  CHECK(data.test.count() == 7);
  std::map<std::string, std::string> all = contents(data.train);
  all.merge(contents(data.validation));
  CHECK(all.size() == 30);
  all.merge(contents(data.test));
  CHECK(all.size() == 37);
  for (const auto& [words, name] : all) CHECK(name == (words[0] == 'g' || words[0] == 'n' ? "pos" : "neg"));
  bool mixed = false;  // not one class after another
  for (size_t i = 2; i < data.train.labels.size(); ++i)
    mixed = mixed || (data.train.labels[i] == data.train.labels[0] && data.train.labels[i - 1] != data.train.labels[0]);
  CHECK(mixed);

  CHECK(checksum(load_text_folder(imdb, 100, Key{1}).train) == checksum(data.train));
  const OmpThreads one(1);
  CHECK(checksum(load_text_folder(imdb, 100, Key{1}).validation) == checksum(data.validation));
  CHECK(contents(load_text_folder(imdb, 100, Key{2}).validation) != contents(data.validation));
  for (const auto& cut : contents(load_text_folder(imdb, 3, Key{1}).train)) CHECK(cut.first.size() == 3);

  fs::rename(imdb / "test/pos", imdb / "test/positive");
  check_fails([&] { load_text_folder(imdb, 9, Key{1}); }, "train and test have different sub-folders");
}

TEST_CASE("text folder: a folder for each class, split into three sets") {
  const Folder folder;
  std::string longer;
  for (int i = 0; i < 200'000; ++i) longer += static_cast<char>(i % 251);
  for (int i = 0; i < 10; ++i)
    for (const char* const name : {"b", "a", "c"})
      write_bytes(folder.path / name / (std::to_string(i) + ".txt"), name + std::to_string(i) + longer);
  write_bytes(folder.path / ".hidden/x.txt", "x");
  const ClassificationData data = load_text_folder(folder.path, INT64_MAX, Key{1});
  CHECK(data.train.class_names == std::vector<std::string>{"a", "b", "c"});
  CHECK(data.train.count() == 24);
  CHECK(data.validation.count() == 3);
  CHECK(data.test.count() == 3);
  std::map<std::string, std::string> all = contents(data.train);
  all.merge(contents(data.validation));
  all.merge(contents(data.test));
  CHECK(all.size() == 30);
  for (const auto& [words, name] : all) CHECK(words.substr(0, 1) == name);
  CHECK(text(data.train, 0).substr(2) == longer);
}

TEST_CASE("text folder: what is missing, and what to do") {
  const Folder folder;
  const auto fails = [&](const std::string& words) {
    check_fails([&] { load_text_folder(folder.path / "t", 9, Key{1}); }, (folder.path / "t").string() + words);
  };
  fails(
      ": no such folder; texts are in train/CLASS/*.txt and test/CLASS/*.txt, or in CLASS/*.txt. For IMDb, fetch "
      "aclImdb_v1.tar.gz");
  fs::create_directory(folder.path / "t");
  fails(": no sub-folders; texts are in");
  write_bytes(folder.path / "t/a/1.txt", "1");
  fails(": only one class, a; texts are in");
  fs::create_directory(folder.path / "t/b");
  fails("/b: no files *.txt; texts are in");
  write_bytes(folder.path / "t/b/1.txt", "1");
  fails(": only 2 texts; at least 10 are needed");
  for (int i = 0; i < 10; ++i) write_bytes(folder.path / "t/b" / (std::to_string(i) + ".txt"), "");
  CHECK(load_text_folder(folder.path / "t", 9, Key{1}).train.count() == 9);  // empty texts are texts
  fs::create_directory(folder.path / "t/b/folder.txt");
  fails("/b/folder.txt");
  check_fails([&] { load_text_folder(folder.path, 0, Key{1}); }, "cut at a length of 0");
}

TEST_CASE("text pairs: three files of five fields, or of three") {
  const Folder folder;
  const fs::path train = folder.path / "new_aan_pairs.train.tsv";
  write_bytes(train, "1.0\tP1\tP2\tan \"apple\tb'pear\"\n0.0\tP3\tP4\t\tx\n");
  write_bytes(folder.path / "validation.tsv", "1\tsome\twords\r\n");
  check_fails([&] { load_text_pairs(folder.path, 9); },
              "no new_aan_pairs.test.tsv or test.tsv; pairs of texts are three");
  const fs::path test = folder.path / "test.tsv";
  write_bytes(test, "0\ta\tb\n");
  const ClassificationData data = load_text_pairs(folder.path, 6);
  CHECK(data.train.name == "pairs of " + folder.path.string() + " (train)");
  CHECK(data.train.class_names == std::vector<std::string>{"unrelated", "related"});
  CHECK(data.train.per_sample == 2);
  CHECK(data.train.count() == 2);
  CHECK(data.train.labels == std::vector<int32_t>{1, 0});
  CHECK(text(data.train, 0) == "an \"ap");
  CHECK(text(data.train, 1) == "b'pear");
  CHECK(text(data.train, 2).empty());
  CHECK(text(data.train, 3) == "x");
  CHECK(text(data.validation, 1) == "words");
  CHECK(data.test.labels == std::vector<int32_t>{0});
  check_fails([&] { load_text_pairs(folder.path, 0); }, "cut at a length of 0");

  const auto fails = [&](const std::string& bytes, const std::string& words) {
    CAPTURE(bytes);
    write_bytes(test, bytes);
    check_fails([&] { load_text_pairs(folder.path, 9); }, test.string() + words);
  };
  fails("", ": it is empty");
  fails("0\ta\tb\n0\ta\n", ":2: 2 fields; a label, two names and two texts are 5");
  fails("0\ta\tb\tc\n", ":1: 4 fields");
  fails("0\ta\tb\n\n", ":2: 1 field;");
  fails("yes\ta\tb\n", ":1: the label is \"yes\"; it must be 0 or 1");
  fails("2\ta\tb\tc\td\n", ":1: the label is \"2\"");
  fs::remove(test);
  fs::create_directory(test);
  check_fails([&] { load_text_pairs(folder.path, 9); }, test.string());
}

TEST_CASE("grey images: TensorFlow's weights, cut to an integer") {
  ImageSet images{"three pixels", 2, 1, 3, 3, {}, {1, 0}, {"x", "y"}};
  images.pixels = {255, 255, 255, 0, 0, 0,   255, 0,  0,    // white, black, red: 76.37
                   0,   255, 0,   0, 0, 255, 10,  20, 30};  // green: 149.98; blue: 29.13; 18.18
  const LabelledSequences grey = grey_sequences(images);
  CHECK(grey.name == "three pixels, grey");
  CHECK(grey.class_names == images.class_names);
  CHECK(grey.labels == images.labels);
  CHECK(grey.first == std::vector<int64_t>{0, 3, 6});
  CHECK(grey.bytes == std::vector<uint8_t>{255, 0, 76, 149, 29, 18});
  images.channels = 1, images.pixels.resize(6);
  CHECK(grey_sequences(images).bytes == images.pixels);
  images.class_names.clear();
  check_fails([&] { grey_sequences(images); }, "three pixels: its images have no classes");
}

TEST_CASE("grey images: CIFAR-10, the last tenth of training held out") {
  const Folder folder;
  const auto file = [&](const std::string& name, int count, int shade) {
    std::string bytes;
    for (int i = 0; i < count; ++i) bytes += static_cast<char>(i % 10) + std::string(3072, static_cast<char>(shade));
    write_bytes(folder.path / name, bytes);
  };
  for (int i = 1; i <= 5; ++i) file("data_batch_" + std::to_string(i) + ".bin", 4, 10 * i);
  file("test_batch.bin", 3, 100);
  const ClassificationData data = load_grey_cifar10(folder.path);
  CHECK(data.train.count() == 18);
  CHECK(data.validation.count() == 2);
  CHECK(data.test.count() == 3);
  CHECK(data.validation.labels == std::vector<int32_t>{2, 3});
  CHECK(data.validation.bytes == std::vector<uint8_t>(2048, 50));
  CHECK(data.train.length(17) == 1024);
  CHECK(data.train.name == "CIFAR-10 (train), grey");
  CHECK(data.validation.name == "CIFAR-10 (validation), grey");
  CHECK(data.test.name == "CIFAR-10 (test), grey");
  CHECK(data.test.class_names[3] == "cat");
}

}  // namespace
}  // namespace runnel::test
