// Where the numbers come from: the copy task as the authors define it, the files of MNIST and CIFAR-10 whole and
// damaged, fetching them, drawn digits.

#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "datasets/cifar10.h"
#include "datasets/copy_task.h"
#include "datasets/mnist.h"
#include "datasets/recall_task.h"
#include "datasets/synthetic_digits.h"
#include "datasets/text_file.h"
#include "tests/check.h"
#include "tests/paths.h"

namespace runnel::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("copy task: sequence, separator, sequence, padding; the loss counts on [n-1, 2n)") {
  for (const int64_t length : {5, 6, 7, 8, 31, 128}) {
    CAPTURE(length);
    const int64_t rows = 400;
    const CopyBatch batch = CopyTask{length, 10}.batch(Key{3}, rows);
    CHECK(batch.tokens.shape() == Shape{rows, length});
    const auto x = batch.tokens.to_vector(), y = batch.targets.to_vector();
    const auto mask = batch.mask.to_vector();
    std::set<int64_t> lengths;
    std::set<int32_t> symbols;
    for (int64_t b = 0; b < rows; ++b) {
      const int32_t* const row = x.data() + b * length;
      int64_t n = 0;
      while (row[n] != 0) symbols.insert(row[n++]);
      lengths.insert(n);
      bool right = true;
      for (int64_t t = 0; t < length; ++t) {
        const int32_t expected = t < n ? row[t] : t > n && t <= 2 * n ? row[t - n - 1] : 0;
        const size_t at = static_cast<size_t>(b * length + t);
        right = right && row[t] == expected && y[at] == (t + 1 < length ? row[t + 1] : 0) &&
                mask[at] == (t >= n - 1 && t < 2 * n ? 1.f : 0.f);
      }
      CHECK(right);
    }
    CHECK(*lengths.begin() == length / 4);
    CHECK(*lengths.rbegin() == (length - 1) / 2 - 1);
    CHECK(static_cast<int64_t>(lengths.size()) == (length - 1) / 2 - length / 4);
    CHECK(*symbols.begin() == 1);
    CHECK(*symbols.rbegin() == 10);
  }
}

TEST_CASE("copy task: a batch is a function of its key; a smaller batch is the beginning of a larger one") {
  const CopyTask task;
  const auto of = [&](uint64_t step, int64_t size) { return task.batch(Key{1}.fold(step), size).tokens.to_vector(); };
  const auto eight = of(5, 8);
  CHECK(eight == of(5, 8));
  CHECK(eight != of(6, 8));
  CHECK(of(5, 3) == std::vector<int32_t>(eight.begin(), eight.begin() + 3 * 128));
  CHECK(task.batch(Key{1}.fold(5), 3, Device::cpu, 5).tokens.to_vector() ==
        std::vector<int32_t>(eight.begin() + 5 * 128, eight.end()));
  CHECK(task.vocabulary() == 11);
  CHECK(task.batch(Key{1}, 0).tokens.size() == 0);
}

TEST_CASE("copy task: what cannot be drawn") {
  check_fails([] { CopyTask{4, 10}.batch(Key{1}, 1); }, "a length of 4");
  check_fails([] { CopyTask{0, 10}.batch(Key{1}, 1); }, "a length of 0");
  check_fails([] { CopyTask{128, 0}.batch(Key{1}, 1); }, "0 symbols");
  check_fails([] { CopyTask{128, 10}.batch(Key{1}, -1); }, "-1 sequences");
}

ImageSet numbered(int64_t count, int64_t height, int64_t width, int64_t channels) {
  ImageSet set{"numbered", count, height, width, channels, {}, {}};
  for (int64_t i = 0; i < count * set.size(); ++i) set.pixels.push_back(static_cast<uint8_t>(i * 37 % 256));
  for (int64_t i = 0; i < count; ++i) set.labels.push_back(static_cast<int32_t>(i));
  return set;
}

TEST_CASE("images: bytes 0 .. n-2 in, bytes 1 .. n-1 out, around the end of the set") {
  const ImageSet set = numbered(3, 2, 2, 1);
  const ByteBatch batch = byte_batch(set, 5, 2);  // images 2 and 0
  CHECK(batch.tokens.shape() == Shape{2, 3});
  const auto& p = set.pixels;
  CHECK(batch.tokens.to_vector() == std::vector<int32_t>{p[8], p[9], p[10], p[0], p[1], p[2]});
  CHECK(batch.targets.to_vector() == std::vector<int32_t>{p[9], p[10], p[11], p[1], p[2], p[3]});
  CHECK(byte_batch(set, 0, 0).tokens.size() == 0);
  check_fails([&] { byte_batch(set, -1, 1); }, "from number -1");
  check_fails([&] { byte_batch(slice(set, 0, 0), 0, 1); }, "no image");
}

TEST_CASE("text: nine tenths train, one validates; a window's targets are one byte further, around the end") {
  const fs::path folder = fs::temp_directory_path() / ("runnel_text_" + std::to_string(getpid()));
  fs::create_directories(folder / "b");
  const fs::path path = folder / "a.txt";
  std::ofstream(path) << "0123456789abcdefghi\xff";
  const Text text = load_text(path, 1);
  CHECK(std::string(text.train.begin(), text.train.end()) == "0123456789abcdefgh");
  CHECK(text.validation == std::vector<uint8_t>{'i', 255});
  Text other = text;
  other.validation[0] = 'j';
  CHECK(checksum(other) != checksum(text));
  TextBatch batch = text_windows(text.train, {14, 0}, 3, true);
  CHECK(batch.tokens.shape() == Shape{2, 3});
  CHECK(batch.tokens.to_vector() == std::vector<int32_t>{'e', 'f', 'g', '0', '1', '2'});
  CHECK(batch.targets.to_vector() == std::vector<int32_t>{'f', 'g', 'h', '1', '2', '3'});
  CHECK(batch.kept.to_vector() == std::vector<float>{1, 1});
  batch = text_windows(text.train, {17}, 2);
  CHECK(batch.tokens.to_vector() == std::vector<int32_t>{'h', '0'});
  CHECK(batch.targets.to_vector() == std::vector<int32_t>{'0', '1'});
  CHECK(batch.kept.to_vector() == std::vector<float>{0});
  check_fails([&] { load_text(path, 2); }, "20 bytes; for windows of 2 it takes 30 or more");

  std::ofstream(folder / "b" / "second") << "BB";
  std::ofstream(folder / ".hidden") << "no";
  const std::vector<uint8_t> all = read_text(folder);
  CHECK(std::string(all.begin(), all.end()) ==
        "0123456789abcdefghi\xff"
        "BB");
  fs::remove_all(folder);
  check_fails([&] { load_text(path, 1); }, path.string() + " is not there; datasets/download.sh shakespeare");
  fs::create_directories(folder);
  check_fails([&] { load_text(folder, 1); }, "no file lies in the folder");
  std::ofstream(path) << "";
  check_fails([&] { load_text(path, 1); }, "has 0 bytes; a language model needs two");
  fs::remove_all(folder);
}

TEST_CASE("recall task: pairs, then each key once; the value of each is asked for; the rest are no keys") {
  const RecallTask task{.vocabulary = 64};
  for (const auto& sizes : std::vector<std::pair<int64_t, int64_t>>{{64, 4}, {64, 16}, {33, 8}, {4, 1}}) {
    const int64_t length = sizes.first, pairs = sizes.second;
    const RecallBatch batch = task.batch(Key{3}, 20, length, pairs);
    const std::vector<int32_t> tokens = batch.tokens.to_vector(), places = batch.places.to_vector(),
                               values = batch.values.to_vector();
    for (int64_t b = 0; b < 20; ++b) {
      const auto at = [&](int64_t t) { return tokens[static_cast<size_t>(b * length + t)]; };
      std::map<int32_t, int32_t> value_of;
      for (int64_t n = 0; n < pairs; ++n) {
        CHECK((at(2 * n) >= 1 && at(2 * n) < 32 && at(2 * n + 1) >= 32 && at(2 * n + 1) < 64));
        CHECK(value_of.emplace(at(2 * n), at(2 * n + 1)).second);
      }
      std::set<int32_t> asked;
      for (int64_t n = b * pairs; n < (b + 1) * pairs; ++n) {
        const int64_t place = places[static_cast<size_t>(n)] - b * length;
        REQUIRE((place >= 2 * pairs && place < length && place % 2 == 0));
        CHECK(asked.insert(at(place)).second);
        CHECK_EQ(value_of.at(at(place)), values[static_cast<size_t>(n)]);
      }
      int64_t found = 0;
      for (int64_t t = 2 * pairs; t < length; ++t) found += value_of.contains(at(t));
      CHECK_EQ(found, pairs);
    }
  }
  CHECK(task.batch(Key{3}, 3, 64, 4, 2).tokens.to_vector() != task.batch(Key{3}, 3, 64, 4).tokens.to_vector());
  const std::vector<int32_t> both = task.batch(Key{3}, 3, 64, 4).tokens.to_vector();
  CHECK(task.batch(Key{3}, 1, 64, 4, 2).tokens.to_vector() == std::vector<int32_t>(both.end() - 64, both.end()));
  check_fails([&] { task.batch(Key{3}, 1, 15, 4); }, "15 positions are too few for 4 pairs and their keys");
  check_fails([&] { task.batch(Key{3}, 1, 1000, 32); }, "32 pairs; a vocabulary of 64 has 31 keys");
}

TEST_CASE("images: the checksum depends on each pixel and each label") {
  const ImageSet set = numbered(3, 2, 2, 1);
  CHECK(checksum(set) == checksum(numbered(3, 2, 2, 1)));
  for (size_t i = 0; i < set.pixels.size(); ++i) {
    ImageSet other = set;
    ++other.pixels[i];
    CHECK(checksum(other) != checksum(set));
  }
  for (size_t i = 0; i < set.labels.size(); ++i) {
    ImageSet other = set;
    ++other.labels[i];
    CHECK(checksum(other) != checksum(set));
  }
}

TEST_CASE("images: a slice, and half the size") {
  const ImageSet set = numbered(3, 4, 6, 3);
  const ImageSet last = slice(set, 1, 2);
  CHECK(last.count == 2);
  CHECK(last.labels == std::vector<int32_t>{1, 2});
  CHECK(last.pixels == std::vector<uint8_t>(set.pixels.begin() + 72, set.pixels.end()));
  check_fails([&] { slice(set, 2, 2); }, "not 2 from number 2");

  const ImageSet half = halved(set);
  CHECK(half.height == 2);
  CHECK(half.width == 3);
  CHECK(half.labels == set.labels);
  REQUIRE(half.pixels.size() == 3 * 2 * 3 * 3);
  size_t at = 0;
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t y = 0; y < 4; y += 2)
      for (int64_t x = 0; x < 6; x += 2)
        for (int64_t c = 0; c < 3; ++c) {
          double total = 0;
          for (const auto& [dy, dx] : {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}})
            total += set.image(i)[static_cast<size_t>(((y + dy) * 6 + x + dx) * 3 + c)];
          CHECK(half.pixels[at++] == std::floor(total / 4 + 0.5));
        }
  check_fails([] { halved(numbered(1, 3, 4, 1)); }, "odd side");
}

// A folder of its own for each test, gone afterwards.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("runnel_datasets_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path / "mnist"); }
  ~Folder() { fs::remove_all(path); }
};

std::string big_endian(const std::vector<uint32_t>& numbers) {
  std::string bytes;
  for (const uint32_t n : numbers)
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(n >> shift & 255);
  return bytes;
}

std::string pixels_of(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count * 784; ++i) bytes += static_cast<char>(i % 251);
  return bytes;
}

const std::string good_images = big_endian({2051, 3, 28, 28}) + pixels_of(3);
const std::string good_labels = big_endian({2049, 3}) + std::string("\7\0\11", 3);

void write_file(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_gzip(const fs::path& path, const std::string& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
  REQUIRE(gzclose(file) == Z_OK);
}

TEST_CASE("mnist: read from the folder or its subfolder, under both names, gzip'd or not") {
  for (const std::string folder : {"", "mnist"})
    for (const std::string separator : {"-", "."})
      for (const bool gzip : {false, true}) {
        CAPTURE(folder);
        CAPTURE(separator);
        CAPTURE(gzip);
        const Folder data;
        const auto path = [&](const std::string& stem) {
          return data.path / folder / (stem + (gzip ? "-ubyte.gz" : "-ubyte"));
        };
        const auto put = gzip ? write_gzip : write_file;
        put(path("t10k-images" + separator + "idx3"), good_images);
        put(path("t10k-labels" + separator + "idx1"), good_labels);
        const ImageSet set = load_mnist(data.path, Split::test);
        CHECK(set.count == 3);
        CHECK(set.height == 28);
        CHECK(set.width == 28);
        CHECK(set.channels == 1);
        CHECK(set.labels == std::vector<int32_t>{7, 0, 9});
        CHECK(set.class_names.size() == 10);
        CHECK(std::string(set.pixels.begin(), set.pixels.end()) == pixels_of(3));
        check_fails([&] { load_mnist(data.path, Split::train); }, "datasets/download.sh mnist " + data.path.string());
      }
}

TEST_CASE("mnist: a damaged file is named, with what is wrong and what to do") {
  const struct {
    std::string images, labels, words;
  } cases[] = {
      {"", good_labels, "images-idx3-ubyte: ends inside its header"},
      {good_images.substr(0, 15), good_labels, "ends inside its header"},
      {good_images.substr(0, 16), good_labels, "truncated: its header promises 2352 bytes and 0 follow"},
      {good_images.substr(0, good_images.size() - 1), good_labels, "promises 2352 bytes and 2351 follow"},
      {good_images + "x", good_labels, "more bytes than the 2352"},
      {good_labels, good_images, "images-idx3-ubyte: its magic number is 2049 and not 2051"},
      {"<html>404 Not Found</html>", good_labels, "its magic number is"},
      {"\x1f\x8b garbage that pretends to be gzip", good_labels, "damaged gzip data"},
      {big_endian({2051, 3, 28, 27}) + pixels_of(3), good_labels, "28 x 27, not 28 x 28"},
      {big_endian({2051, 0, 28, 28}), good_labels, "holds no images"},
      {big_endian({2051, 0xffffffff, 28, 28}) + pixels_of(3), good_labels,
       "claims 4294967295 images; more than 1000000"},
      {big_endian({2051, 3, 0xffffffff, 0xffffffff}) + pixels_of(3), good_labels, "not 28 x 28"},
      {good_images, good_images, "labels-idx1-ubyte: its magic number is 2051 and not 2049"},
      {good_images, big_endian({2049, 2}) + std::string(2, '\1'), "holds 2 labels, but"},
      {good_images, good_labels.substr(0, 10), "promises 3 bytes and 2 follow"},
      {good_images, good_labels + "x", "more bytes than the 3"},
  };
  const Folder data;
  for (const auto& c : cases) {
    write_file(data.path / "train-images-idx3-ubyte", c.images);
    write_file(data.path / "train-labels-idx1-ubyte", c.labels);
    check_fails([&] { load_mnist(data.path, Split::train); }, c.words);
    check_fails([&] { load_mnist(data.path, Split::train); }, "fetch it again with: datasets/download.sh mnist");
    check_fails([&] { load_mnist(data.path, Split::train); }, data.path.string());
  }
}

TEST_CASE("mnist: a gzip file that ends early, or whose data fails its sum") {
  const Folder data;
  const fs::path images = data.path / "mnist" / "train-images-idx3-ubyte.gz";
  write_file(data.path / "mnist" / "train-labels-idx1-ubyte", good_labels);
  write_gzip(images, good_images);
  const std::string whole = read_file(images);
  for (const size_t cut : {size_t{1}, size_t{8}, whole.size() / 2}) {
    write_file(images, whole.substr(0, whole.size() - cut));
    check_fails([&] { load_mnist(data.path, Split::train); }, "truncated");
  }
  std::string flipped = whole;
  flipped[whole.size() - 6] ^= 1;  // in the sum
  write_file(images, flipped);
  check_fails([&] { load_mnist(data.path, Split::train); }, "damaged gzip data");
}

TEST_CASE("mnist: what is no file, and where data is looked for") {
  const Folder data;
  fs::create_directory(data.path / "train-images-idx3-ubyte");
  write_file(data.path / "train-labels-idx1-ubyte", good_labels);
  check_fails([&] { load_mnist(data.path, Split::train); }, "train-images-idx3-ubyte is not a regular file");
  check_fails([] { load_mnist("no such folder", Split::test); }, "MNIST: no t10k-images-idx3-ubyte");

  const char* const variable = std::getenv("RUNNEL_DATA");
  const std::string before = variable ? variable : "";
  setenv("RUNNEL_DATA", "elsewhere", 1);
  CHECK(data_directory() == "elsewhere");
  CHECK(data_directory("here") == "here");
  unsetenv("RUNNEL_DATA");
  CHECK(data_directory() == "data");
  if (variable) setenv("RUNNEL_DATA", before.c_str(), 1);
}

// The directory with the real data set that has this subfolder, if there is one.
std::optional<fs::path> real_data(const std::string& name, const std::string& subfolder) {
  for (const fs::path& folder :
       {data_directory(), fs::path("data"), source_dir() / "data", source_dir() / "../shared/data"})
    if (fs::exists(folder / subfolder)) return folder;
  MESSAGE("skipped: 1 test, no " << name << " in $RUNNEL_DATA, ./data or ../shared/data");
  return {};
}

TEST_CASE("mnist: the real one has its known mean, deviation and labels") {
  const std::optional<fs::path> folder = real_data("MNIST", "mnist");
  if (!folder) return;
  const ImageSet train = load_mnist(*folder, Split::train), test = load_mnist(*folder, Split::test);
  CHECK(train.count == 60000);
  CHECK(test.count == 10000);
  double total = 0, squares = 0;
  for (const uint8_t pixel : train.pixels) {
    total += pixel / 255.0;
    squares += pixel / 255.0 * (pixel / 255.0);
  }
  const double mean = total / static_cast<double>(train.pixels.size());
  CHECK(std::abs(mean - 0.1307) < 5e-5);
  CHECK(std::abs(std::sqrt(squares / static_cast<double>(train.pixels.size()) - mean * mean) - 0.3081) < 5e-5);
  CHECK(std::vector<int32_t>(train.labels.begin(), train.labels.begin() + 5) == std::vector<int32_t>{5, 0, 4, 1, 9});
  CHECK(std::vector<int32_t>(test.labels.begin(), test.labels.begin() + 5) == std::vector<int32_t>{7, 2, 1, 0, 4});
}

constexpr size_t plane = 32 * 32;

// CIFAR-10's bytes for images with these labels; channel c of pixel p of image i is 50 i + 5 c + p.
std::string records(const std::vector<int>& labels) {
  std::string bytes;
  for (size_t i = 0; i < labels.size(); ++i) {
    bytes += static_cast<char>(labels[i]);
    for (size_t c = 0; c < 3; ++c)
      for (size_t p = 0; p < plane; ++p) bytes += static_cast<char>(50 * i + 5 * c + p);
  }
  return bytes;
}

TEST_CASE("cifar10: read from the folder or its subfolders, gzip'd or not, r g b side by side") {
  for (const std::string folder : {"", "cifar10", "cifar-10-batches-bin"})
    for (const bool gzip : {false, true}) {
      CAPTURE(folder);
      CAPTURE(gzip);
      const Folder data;
      fs::create_directories(data.path / folder);
      const auto path = [&](const std::string& stem) {
        return data.path / folder / (stem + (gzip ? ".bin.gz" : ".bin"));
      };
      const auto put = gzip ? write_gzip : write_file;
      for (int i = 1; i <= 5; ++i) put(path("data_batch_" + std::to_string(i)), records({i, 9 - i}));
      const ImageSet set = load_cifar10(data.path, Split::train);
      CHECK(set.name == "CIFAR-10 (train)");
      CHECK(set.count == 10);
      CHECK(set.height == 32);
      CHECK(set.width == 32);
      CHECK(set.channels == 3);
      CHECK(set.labels == std::vector<int32_t>{1, 8, 2, 7, 3, 6, 4, 5, 5, 4});
      bool right = set.pixels.size() == 10 * 3 * plane;
      for (size_t at = 0; right && at < set.pixels.size(); ++at) {
        const size_t i = at / (3 * plane) % 2, p = at % (3 * plane) / 3, c = at % 3;
        right = set.pixels[at] == static_cast<uint8_t>(50 * i + 5 * c + p);
      }
      CHECK(right);
      check_fails([&] { load_cifar10(data.path, Split::test); }, "CIFAR-10: no test_batch.bin (or .gz) in ");
      check_fails([&] { load_cifar10(data.path, Split::test); }, "datasets/download.sh cifar10 " + data.path.string());
      put(path("test_batch"), records({0}));
      CHECK(load_cifar10(data.path, Split::test).labels == std::vector<int32_t>{0});
      fs::remove(path("data_batch_4"));
      check_fails([&] { load_cifar10(data.path, Split::train); }, "CIFAR-10: no data_batch_4.bin");
    }
  check_fails([] { load_cifar10("no such folder", Split::train); }, "no such folder/cifar-10-batches-bin");
}

TEST_CASE("cifar10: a damaged file is named, with what is wrong and what to do") {
  const Folder data;
  const fs::path plain = data.path / "test_batch.bin", zipped = data.path / "test_batch.bin.gz";
  const auto check_damaged = [&](const fs::path& path, const std::string& words) {
    check_fails([&] { load_cifar10(data.path, Split::test); }, path.string() + ": " + words);
    check_fails([&] { load_cifar10(data.path, Split::test); }, "fetch it again with: datasets/download.sh cifar10");
  };
  const std::string good = records({3, 9});
  const struct {
    std::string bytes, words;
  } cases[] = {
      {"", "holds no images"},
      {good.substr(0, 3072), "truncated: its 3072 bytes end inside image number 0"},
      {good + "x", "truncated: its 6147 bytes end inside image number 2"},
      {std::string(10000 * 3073 + 1, '\1'), "longer than 10000 images of 3073 bytes"},
      {records({9, 10}), "the label of image number 1 is 10, above 9"},
      {"\x1f\x8b garbage that pretends to be gzip", "damaged gzip data"},
  };
  for (const auto& c : cases) {
    write_file(plain, c.bytes);
    check_damaged(plain, c.words);
  }
  fs::remove(plain);
  write_gzip(zipped, good);
  const std::string whole = read_file(zipped);
  write_file(zipped, whole.substr(0, whole.size() / 2));
  check_damaged(zipped, "truncated: its gzip data ends early");
  std::string flipped = whole;
  flipped[whole.size() - 6] ^= 1;  // in the sum
  write_file(zipped, flipped);
  check_damaged(zipped, "damaged gzip data");
  fs::remove(zipped);
  fs::create_directory(plain);
  check_fails([&] { load_cifar10(data.path, Split::test); }, "test_batch.bin is not a regular file");
}

TEST_CASE("cifar10: the real one has its known means, labels and number of images of each class") {
  const std::optional<fs::path> folder = real_data("CIFAR-10", "cifar-10-batches-bin");
  if (!folder) return;
  const ImageSet train = load_cifar10(*folder, Split::train), test = load_cifar10(*folder, Split::test);
  CHECK(train.count == 50000);
  CHECK(test.count == 10000);
  for (int32_t label = 0; label < 10; ++label) {
    CHECK(std::count(train.labels.begin(), train.labels.end(), label) == 5000);
    CHECK(std::count(test.labels.begin(), test.labels.end(), label) == 1000);
  }
  double total[3] = {};
  for (size_t i = 0; i < train.pixels.size(); ++i) total[i % 3] += train.pixels[i];
  const double pixels = static_cast<double>(train.pixels.size() / 3);
  CHECK(std::abs(total[0] / pixels - 125.307) < 5e-4);
  CHECK(std::abs(total[1] / pixels - 122.950) < 5e-4);
  CHECK(std::abs(total[2] / pixels - 113.865) < 5e-4);
  CHECK(std::vector<int32_t>(train.labels.begin(), train.labels.begin() + 5) == std::vector<int32_t>{6, 9, 9, 4, 1});
  CHECK(std::vector<int32_t>(test.labels.begin(), test.labels.begin() + 5) == std::vector<int32_t>{3, 8, 8, 0, 6});
}

// datasets/download.sh without a network: a curl that knows the files in `web` by their names alone and writes down
// what it was asked for, and an md5sum for which the sum of a file is the 32 characters that it begins with, and the
// sum of any tar file that of CIFAR-10's.
struct Fetching : Folder {
  fs::path web = path / "web", tools = path / "tools";
  std::string script = read_file(source_dir() / "datasets" / "download.sh");

  Fetching() {
    for (const fs::path& folder : {web, tools}) fs::create_directory(folder);
    tool("curl", "for last; do :; done\necho $last >> " + (path / "asked").string() +
                     "\nwhile [ $1 != --output ]; do shift; done\ncp " + web.string() +
                     "/${last##*/} $2 2> /dev/null || exit 22\n");
    const std::string sum = (path / "sum").string();
    tool("md5sum", "cat > " + sum + "\nif tar -tzf " + sum +
                       " > /dev/null 2>&1; then echo c32a1d4ab5d03f1284b67883e8d87530; else head -c 32 " + sum +
                       "; fi\n");
  }

  void tool(const std::string& name, const std::string& commands) const {
    write_file(tools / name, "#!/bin/sh\n" + commands);
    fs::permissions(tools / name, fs::perms::owner_all);
  }

  // Every file of a set with its sum, as the script lists them.
  std::vector<std::pair<std::string, std::string>> files(const std::string& kind) const {
    std::vector<std::pair<std::string, std::string>> found;
    std::istringstream lines(script);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name, sum, rest;
      const bool two = words >> name >> sum && !(words >> rest);
      if (two && name.find(kind) != std::string::npos && sum.size() == 32 &&
          sum.find_first_not_of("0123456789abcdef") == std::string::npos)
        found.emplace_back(name, sum);
    }
    return found;
  }

  // What it says, or "FAILED " and that, which is one line.
  std::string run(const std::string& words) const {
    const std::string said = (path / "said").string();
    const int status =
        std::system(("PATH=" + tools.string() + ":$PATH bash " + (source_dir() / "datasets" / "download.sh").string() +
                     " " + words + " > " + said + " 2>&1")
                        .c_str());
    const std::string text = read_file(said);
    if (status) CHECK(std::count(text.begin(), text.end(), '\n') == 1);
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path))
      CHECK(entry.path().filename().string().find(".download-") == std::string::npos);
    return status ? "FAILED " + text : text;
  }
  size_t asked() const {
    const std::string lines = read_file(path / "asked");
    return static_cast<size_t>(std::count(lines.begin(), lines.end(), '\n'));
  }
};

void check_has(const std::string& text, const std::string& words) {
  CAPTURE(text);
  CHECK(text.find(words) != std::string::npos);
}

TEST_CASE("download.sh mnist: fetches what is missing or damaged, and that alone") {
  if (!has_sources()) return;
  const Fetching box;
  const auto files = box.files("ubyte");
  REQUIRE(files.size() == 4);
  const std::string data = (box.path / "data").string();
  check_has(box.run("mnist " + data), "FAILED download.sh: no mirror gave a good train-images-idx3-ubyte.gz");
  check_has(box.run("mnist " + data), "--data synthetic");
  for (const auto& [name, sum] : files) write_gzip(box.web / (name + ".gz"), sum + " content");
  char host[256] = "";
  gethostname(host, sizeof host - 1);  // what a process that was killed has left there is removed
  fs::create_directories(box.path / "data" / "mnist" / (std::string(".download-") + host + "-999999999") / "half");
  check_has(box.run("mnist " + data), "t10k-labels-idx1-ubyte.gz: fetched from https://");
  const size_t asked = box.asked();
  const fs::path first = box.path / "data" / "mnist" / (files[0].first + ".gz");
  check_has(box.run("mnist " + data), first.string() + ": already there\n");
  CHECK(box.asked() == asked);
  write_file(first, "<html>404 Not Found</html>");
  check_has(box.run("mnist " + data), first.string() + ": fetched from");
  CHECK(box.asked() == asked + 1);
  CHECK(read_file(first) == read_file(box.web / first.filename()));
}

TEST_CASE("download.sh cifar10: unpacks what is missing or damaged from an archive whose sum is right") {
  if (!has_sources()) return;
  const Fetching box;
  const auto files = box.files("batch");
  REQUIRE(files.size() == 6);
  const fs::path folder = box.path / "data" / "cifar-10-batches-bin", archive = box.web / "cifar-10-binary.tar.gz";
  const std::string command = "cifar10 " + (box.path / "data").string();
  check_has(box.run(command), "FAILED download.sh: no mirror gave a good cifar-10-binary.tar.gz (tried https://");
  CHECK(box.asked() == 2);
  write_file(archive, "<html>404 Not Found</html>");
  check_has(box.run(command), "no mirror gave a good");
  CHECK(fs::is_empty(folder));

  fs::create_directories(box.path / "cifar-10-batches-bin");
  for (const auto& [name, sum] : files) write_file(box.path / "cifar-10-batches-bin" / name, sum + " content");
  const std::string pack = "tar -czf " + archive.string() + " -C " + box.path.string() + " cifar-10-batches-bin";
  REQUIRE(std::system(pack.c_str()) == 0);
  const size_t before = box.asked();
  check_has(box.run(command), "test_batch.bin: fetched from https://");
  CHECK(box.asked() == before + 1);
  for (const auto& [name, sum] : files) CHECK(read_file(folder / name) == sum + " content");

  write_file(folder / "data_batch_2.bin", "damaged");
  write_gzip(folder / "test_batch.bin.gz", read_file(folder / "test_batch.bin"));
  fs::remove(folder / "test_batch.bin");
  const std::string said = box.run(command);
  check_has(said, "data_batch_1.bin: already there");
  check_has(said, "data_batch_2.bin: fetched from");
  check_has(said, "test_batch.bin.gz: already there");
  CHECK(box.asked() == before + 2);
  check_has(box.run(command), "data_batch_2.bin: already there");
  CHECK(box.asked() == before + 2);
}

TEST_CASE("download.sh shakespeare: a text of another name there, packed or not") {
  if (!has_sources()) return;
  for (const bool is_packed : {false, true}) {
    const Fetching box;
    // In the script its name and sum stand in brackets on one line.
    const std::string name = "shakespeare.txt ", sum = box.script.substr(box.script.find(name) + name.size(), 32);
    const std::string command = "shakespeare " + (box.path / "data").string();
    check_has(box.run(command), "FAILED download.sh: no mirror gave a good input.txt (tried https://");
    is_packed ? write_gzip(box.web / "input.txt", sum + " to be") : write_file(box.web / "input.txt", sum + " to be");
    check_has(box.run(command), "data/text/shakespeare.txt: fetched from https://");
    CHECK(read_file(box.path / "data" / "text" / "shakespeare.txt") == sum + " to be");
    const size_t asked = box.asked();
    check_has(box.run(command), "shakespeare.txt: already there");
    CHECK(box.asked() == asked);
  }
}

TEST_CASE("download.sh fsdd: unpacks recordings that are the right ones together") {
  if (!has_sources()) return;
  const Fetching box;
  const std::string name = "recordings_sum=", command = "fsdd " + (box.path / "data").string();
  const std::string sum = box.script.substr(box.script.find(name) + name.size(), 32);
  check_has(box.run(command), "FAILED download.sh: no mirror gave a good master.tar.gz (tried https://");
  const auto pack = [&](const std::string& first) {
    write_file(box.path / "repository" / "recordings" / "0_a_0.wav", first);
    const std::string archive = (box.web / "master.tar.gz").string();
    REQUIRE(std::system(("tar -czf " + archive + " -C " + box.path.string() + " repository").c_str()) == 0);
  };
  fs::create_directories(box.path / "repository" / "recordings");
  write_file(box.path / "repository" / "recordings" / "1_a_0.wav", "another");
  pack("damaged");
  check_has(box.run(command), "no mirror gave a good");
  pack(sum + " content");
  check_has(box.run(command), "data/recordings: fetched from https://");
  CHECK(read_file(box.path / "data" / "recordings" / "1_a_0.wav") == "another");
  const size_t asked = box.asked();
  check_has(box.run(command), "data/recordings: already there");
  CHECK(box.asked() == asked);
}

TEST_CASE("download.sh: what it cannot do is one sentence") {
  if (!has_sources()) return;
  const Fetching box;
  for (const std::string words : {"", "faces", "mnist a b"}) {
    CAPTURE(words);
    CHECK(box.run(words) ==
          "FAILED download.sh: usage: datasets/download.sh mnist|cifar10|shakespeare|enwik8|fsdd [DIR]\n");
  }
  write_file(box.path / "plain", "");
  const std::string plain = (box.path / "plain").string();
  CHECK(box.run("cifar10 " + plain) == "FAILED download.sh: cannot create " + plain + "/cifar-10-batches-bin\n");
}

TEST_CASE("download.sh: the real sets have the sums that it knows") {
  if (!has_sources()) return;
  const std::optional<fs::path> folder = real_data("CIFAR-10", "cifar-10-batches-bin");
  if (!folder) return;
  const Fetching box;
  fs::remove(box.tools / "md5sum");
  fs::create_directory(box.path / "data");
  fs::create_symlink(fs::absolute(*folder / "cifar-10-batches-bin"), box.path / "data" / "cifar-10-batches-bin");
  check_has(box.run("cifar10 " + (box.path / "data").string()), "test_batch.bin: already there");
  CHECK_FALSE(fs::exists(box.path / "asked"));
}

TEST_CASE("synthetic digits: named, reproducible, each image a function of its number") {
  const ImageSet set = synthetic_digits(500, Key{1});
  CHECK(set.name == "synthetic digits (not MNIST)");
  CHECK(set.size() == 784);
  CHECK(set.pixels == synthetic_digits(500, Key{1}).pixels);
  CHECK(set.pixels != synthetic_digits(500, Key{2}).pixels);
  const ImageSet few = synthetic_digits(7, Key{1});
  CHECK(few.pixels == slice(set, 0, 7).pixels);
  CHECK(few.labels == slice(set, 0, 7).labels);
  check_fails([] { synthetic_digits(0, Key{1}); }, "a set of 0 images");

  std::set<std::vector<uint8_t>> different;
  for (int64_t i = 0; i < set.count; ++i) {
    const auto image = set.image(i);
    different.emplace(image.begin(), image.end());
    CHECK(image[0] == 0);  // sampling starts from this
  }
  CHECK(different.size() == 500);
}

TEST_CASE("synthetic digits: the nearest mean image tells which digit it is") {
  const ImageSet train = synthetic_digits(2000, Key{1}), test = synthetic_digits(500, Key{2});
  std::vector<std::vector<double>> mean(10, std::vector<double>(784));
  std::vector<double> count(10);
  for (int64_t i = 0; i < train.count; ++i) {
    const size_t label = static_cast<size_t>(train.labels[static_cast<size_t>(i)]);
    ++count[label];
    for (size_t p = 0; p < 784; ++p) mean[label][p] += train.image(i)[p];
  }
  for (size_t digit = 0; digit < 10; ++digit) {
    REQUIRE(count[digit] > 100);
    for (double& m : mean[digit]) m /= count[digit];
  }
  int right = 0;
  for (int64_t i = 0; i < test.count; ++i) {
    size_t nearest = 0;
    double least = INFINITY;
    for (size_t digit = 0; digit < 10; ++digit) {
      double d = 0;
      for (size_t p = 0; p < 784; ++p) d += std::pow(test.image(i)[p] - mean[digit][p], 2);
      if (d < least) least = d, nearest = digit;
    }
    right += static_cast<int32_t>(nearest) == test.labels[static_cast<size_t>(i)];
  }
  CAPTURE(right);
  CHECK(right > 400);  // on real MNIST this gets 82%
}

}  // namespace
}  // namespace runnel::test
