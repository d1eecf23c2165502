// Where the numbers come from: the copy task as the authors define it, IDX files whole and damaged, drawn digits.

#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "datasets/copy_task.h"
#include "datasets/mnist.h"
#include "datasets/synthetic_digits.h"
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
  for (int64_t i = 0; i < count; ++i) set.labels.push_back(static_cast<uint8_t>(i));
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

TEST_CASE("images: a slice, and half the size") {
  const ImageSet set = numbered(3, 4, 6, 3);
  const ImageSet last = slice(set, 1, 2);
  CHECK(last.count == 2);
  CHECK(last.labels == std::vector<uint8_t>{1, 2});
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
        CHECK(set.labels == std::vector<uint8_t>{7, 0, 9});
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
      {big_endian({2051, 0xffffffff, 28, 28}) + pixels_of(3), good_labels, "promises 3367254359280 bytes and 2352"},
      {big_endian({2051, 3, 0xffffffff, 0xffffffff}) + pixels_of(3), good_labels, "not 28 x 28"},
      {good_images, good_images, "labels-idx1-ubyte: its magic number is 2051 and not 2049"},
      {good_images, big_endian({2049, 2}) + std::string(2, '\1'), "holds 2 labels, but"},
      {good_images, good_labels.substr(0, 10), "promises 3 bytes and 2 follow"},
      {good_images, good_labels + "x", "more bytes than the 3"},
      {good_images, big_endian({2049, 3}) + "\1\12\1", "label number 1 is 10"},
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
  check_fails([&] { load_mnist(data.path, Split::train); }, "train-images-idx3-ubyte: cannot be read");
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

TEST_CASE("mnist: the real one has its known mean, deviation and labels") {
  const auto find = []() -> std::optional<fs::path> {
    for (const fs::path& folder : {data_directory(), fs::path("data"), source_dir() / "data",
                                   source_dir() / "../shared/data"})
      if (fs::exists(folder / "mnist")) return folder;
    return {};
  };
  const std::optional<fs::path> folder = find();
  if (!folder) {
    MESSAGE("skipped: 1 test, no MNIST in $RUNNEL_DATA, ./data or ../shared/data");
    return;
  }
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
  CHECK(std::vector<uint8_t>(train.labels.begin(), train.labels.begin() + 5) == std::vector<uint8_t>{5, 0, 4, 1, 9});
  CHECK(std::vector<uint8_t>(test.labels.begin(), test.labels.begin() + 5) == std::vector<uint8_t>{7, 2, 1, 0, 4});
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
    const uint8_t label = train.labels[static_cast<size_t>(i)];
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
    right += nearest == test.labels[static_cast<size_t>(i)];
  }
  CAPTURE(right);
  CHECK(right > 400);  // on real MNIST this gets 82%
}

}  // namespace
}  // namespace runnel::test
