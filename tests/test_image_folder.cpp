// Pictures of the user's own: decoding and scaling one file, and a folder of them as a data set with its cache.
#include "datasets/image_folder.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "datasets/image_file.h"
#include "tests/check.h"
#include "tests/folder.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wunused-function"
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

namespace runnel::test {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

struct PictureFolder : Folder {
  fs::path cache = path.string() + "_cache";
  ~PictureFolder() { fs::remove_all(cache); }
  ImageFolder load(int64_t side = 4, int64_t channels = 1) const {
    return load_image_folder(path, side, channels, cache);
  }
};

void write(const fs::path& path, const Bytes& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

Bytes read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void append(Bytes& bytes, const Bytes& more) { bytes.insert(bytes.end(), more.begin(), more.end()); }

Bytes big_endian(size_t number) {
  Bytes bytes;
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<uint8_t>(number >> shift));
  return bytes;
}

Bytes chunk(const std::string& type, const Bytes& data) {
  Bytes content(type.begin(), type.end());
  append(content, data);
  Bytes all = big_endian(data.size());
  append(all, content);
  append(all, big_endian(crc32(0, content.data(), static_cast<uInt>(content.size()))));
  return all;
}

enum Colour : uint8_t { grey = 0, rgb = 2, palette = 3, grey_alpha = 4, rgb_alpha = 6 };

// A PNG file of samples as they stand in it; those of 16 bits are two bytes each.
Bytes png(size_t width, size_t height, Colour colour, const Bytes& samples, uint8_t depth = 8, const Bytes& more = {}) {
  Bytes file = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, header = big_endian(width), raw;
  append(header, big_endian(height));
  append(header, {depth, colour, 0, 0, 0});
  append(file, chunk("IHDR", header));
  append(file, more);
  const size_t row = height ? samples.size() / height : 0;
  for (size_t y = 0; y < height && row; ++y) {
    raw.push_back(0);
    raw.insert(raw.end(), samples.begin() + static_cast<long>(y * row),
               samples.begin() + static_cast<long>((y + 1) * row));
  }
  uLongf size = compressBound(raw.size());
  Bytes packed(size);
  REQUIRE(compress(packed.data(), &size, raw.data(), raw.size()) == Z_OK);
  packed.resize(size);
  append(file, chunk("IDAT", packed));
  append(file, chunk("IEND", {}));
  return file;
}

Bytes jpeg(int width, int height, int channels, const Bytes& samples) {
  Bytes file;
  const auto put = [](void* to, void* data, int size) {
    const uint8_t* const bytes = static_cast<const uint8_t*>(data);
    static_cast<Bytes*>(to)->insert(static_cast<Bytes*>(to)->end(), bytes, bytes + size);
  };
  REQUIRE(stbi_write_jpg_to_func(put, &file, width, height, channels, samples.data(), 95));
  return file;
}

Bytes noise(size_t count, uint64_t seed) {
  Bytes bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(Key{seed}.bits(i)));
  return bytes;
}

// A grey picture of 4 x 4 that no other number has.
Bytes numbered(uint64_t number) { return png(4, 4, grey, noise(16, number)); }

double linear(double byte) {
  const double s = byte / 255;
  return s <= 0.04045 ? s / 12.92 : std::pow((s + 0.055) / 1.055, 2.4);
}
double srgb(double light) {
  return 255 * (light <= 0.0031308 ? 12.92 * light : 1.055 * std::pow(light, 1 / 2.4) - 0.055);
}

// Each byte within `by` of the expected one, before that was rounded.
void check_bytes(const Bytes& actual, const std::vector<double>& expected, double by = 0.5001) {
  REQUIRE(actual.size() == expected.size());
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) largest = std::max(largest, std::abs(actual[i] - expected[i]));
  CHECK_LE(largest, by);
}

TEST_CASE("scaled_picture: the same size gives the same bytes") {
  Bytes all(256);
  for (size_t i = 0; i < 256; ++i) all[i] = static_cast<uint8_t>(i);
  CHECK(scaled_picture(png(16, 16, grey, all), 16, 1) == all);
  const Bytes colours = noise(16 * 16 * 3, 1);
  CHECK(scaled_picture(png(16, 16, rgb, colours), 16, 3) == colours);
  Bytes thrice;
  for (const uint8_t shade : all) append(thrice, {shade, shade, shade});
  CHECK(scaled_picture(png(16, 16, grey, all), 16, 3) == thrice);
  CHECK(scaled_picture(png(16, 16, rgb, thrice), 16, 1) == all);
}

TEST_CASE("scaled_picture: smaller is the mean of the linear light over exact areas of the square at the centre") {
  const struct {
    int width, height, side;
  } cases[] = {{8, 8, 4}, {7, 7, 3}, {13, 8, 5}, {9, 31, 8}, {5, 4, 1}, {33, 32, 31}};
  for (const auto& c : cases) {
    CAPTURE(c.width);
    CAPTURE(c.height);
    const Bytes samples = noise(static_cast<size_t>(c.width * c.height * 3), 2);
    const int square = std::min(c.width, c.height), left = (c.width - square) / 2, top = (c.height - square) / 2;
    std::vector<double> expected;
    for (int y = 0; y < c.side; ++y)
      for (int x = 0; x < c.side; ++x)
        for (int channel = 0; channel < 3; ++channel) {
          double total = 0;  // over side x side points in each pixel of the file
          for (int v = y * square; v < (y + 1) * square; ++v)
            for (int u = x * square; u < (x + 1) * square; ++u)
              total += linear(
                  samples[static_cast<size_t>(((top + v / c.side) * c.width + left + u / c.side) * 3 + channel)]);
          expected.push_back(srgb(total / square / square));
        }
    check_bytes(
        scaled_picture(png(static_cast<size_t>(c.width), static_cast<size_t>(c.height), rgb, samples), c.side, 3),
        expected);
  }
  Bytes board;
  for (int i = 0; i < 64; ++i) board.push_back((i + i / 8) % 2 ? 255 : 0);
  CHECK(scaled_picture(png(8, 8, grey, board), 2, 1) == Bytes(4, 188));  // half the light, not half of 255
}

TEST_CASE("scaled_picture: larger is bilinear, and a single pixel fills everything") {
  CHECK(scaled_picture(png(1, 1, rgb, {10, 20, 30}), 2, 3) == Bytes{10, 20, 30, 10, 20, 30, 10, 20, 30, 10, 20, 30});
  const double a = linear(40), b = linear(200);
  std::vector<double> expected;
  for (int y = 0; y < 4; ++y)
    for (const double part : {0.0, 0.25, 0.75, 1.0}) expected.push_back(srgb((1 - part) * a + part * b));
  check_bytes(scaled_picture(png(2, 2, grey, {40, 200, 40, 200}), 4, 1), expected);
}

TEST_CASE("scaled_picture: 16 bits, palettes, transparency, grey of colours") {
  CHECK(scaled_picture(png(2, 1, grey, {0x80, 0x80, 0, 0}, 16), 1, 1) == Bytes{128});  // the left one is the centre
  const Bytes table = chunk("PLTE", {1, 2, 3, 250, 251, 252}), clear = chunk("tRNS", {255, 0});
  CHECK(scaled_picture(png(1, 1, palette, {1}, 8, table), 1, 3) == Bytes{250, 251, 252});
  Bytes both = table;
  append(both, clear);
  CHECK(scaled_picture(png(1, 1, palette, {0}, 8, both), 1, 3) == Bytes{1, 2, 3});
  CHECK(scaled_picture(png(1, 1, palette, {1}, 8, both), 1, 3) == Bytes{255, 255, 255});
  CHECK(scaled_picture(png(1, 1, grey, {7}, 8, chunk("tRNS", {0, 7})), 1, 1) == Bytes{255});
  CHECK(scaled_picture(png(1, 1, grey_alpha, {7, 0}), 1, 1) == Bytes{255});
  CHECK(scaled_picture(png(1, 1, grey_alpha, {7, 255}), 1, 3) == Bytes{7, 7, 7});
  const double part = 100 / 255.0;
  check_bytes(scaled_picture(png(1, 1, rgb_alpha, {200, 0, 50, 100}), 1, 3),
              {srgb(part * linear(200) + 1 - part), srgb(1 - part), srgb(part * linear(50) + 1 - part)});
  // The colour of what cannot be seen does not matter.
  check_bytes(scaled_picture(png(2, 2, rgb_alpha, {0, 0, 0, 255, 9, 99, 199, 0, 0, 0, 0, 255, 7, 77, 177, 0}), 1, 3),
              {188, 188, 188}, 1);
  check_bytes(scaled_picture(png(1, 1, rgb, {200, 100, 50}), 1, 1),
              {srgb(0.2126 * linear(200) + 0.7152 * linear(100) + 0.0722 * linear(50))});
}

TEST_CASE("scaled_picture: JPEG, grey and colour") {
  Bytes samples;
  for (int i = 0; i < 24 * 16; ++i) append(samples, {200, 120, 40});
  check_bytes(scaled_picture(jpeg(24, 16, 3, samples), 1, 3), {200, 120, 40}, 3);
  check_bytes(scaled_picture(jpeg(16, 16, 1, Bytes(256, 90)), 1, 1), {90}, 2);
  Bytes longer = jpeg(16, 16, 1, Bytes(256, 90));
  append(longer, noise(100, 3));  // as some telephones do
  CHECK(scaled_picture(longer, 1, 1) == scaled_picture(jpeg(16, 16, 1, Bytes(256, 90)), 1, 1));
}

TEST_CASE("scaled_picture: a damaged file is an error that says what is wrong") {
  const auto fails = [](const Bytes& file, const std::string& words) {
    check_fails([&] { scaled_picture(file, 4, 1); }, words);
  };
  const Bytes good = png(16, 16, grey, noise(256, 4)), photo = jpeg(64, 64, 1, noise(4096, 4));
  fails({}, "not a PNG or JPEG file");
  fails({'G', 'I', 'F', '8', '9', 'a'}, "not a PNG or JPEG file");
  for (size_t size = 8; size < good.size(); size += 7)
    fails({good.begin(), good.begin() + static_cast<long>(size)}, "PNG file that ends early");
  for (size_t size = 3; size < photo.size(); size += 53)
    fails({photo.begin(), photo.begin() + static_cast<long>(size)}, "JPEG file that ends early");
  Bytes flipped = good;
  flipped[good.size() / 2] ^= 1;
  fails(flipped, "a checksum is wrong");
  fails(png(16, 16, grey, noise(40, 4)), "damaged, or of a size or kind");  // too few rows
  fails(png(0, 4, grey, {}), "damaged, or of a size or kind");
  fails(png(1, 1, grey, {1}, 8, chunk("ABCD", {})), "damaged, or of a size or kind");

  // A Huffman table of more than 256 codes, which stb_image would write outside its own.
  const Bytes mark = {0xff, 0xc4};
  Bytes table = photo;
  const auto at = std::search(table.begin(), table.end(), mark.begin(), mark.end());
  REQUIRE(at != table.end());
  std::fill_n(at + 5, 16, uint8_t{255});
  fails(table, "a Huffman table of 4080 codes");
  check_fails([&] { scaled_picture(good, 0, 1); }, "to 0 x 0 x 1");
  check_fails([&] { scaled_picture(good, 4, 2); }, "channels are 1 or 3");
}

TEST_CASE("scaled_picture: what a header claims, and what a file inflates to, takes no memory") {
  const auto peak = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB
  };
  const auto before = peak();
  check_fails([] { scaled_picture(png(16000, 16000, rgb, {}), 4, 1); }, "its header claims 16000 x 16000 pixels");
  check_fails([] { scaled_picture(png(1 << 23, 1 << 23, rgb, {}), 4, 1); }, "damaged, or of a size or kind");
  Bytes row(100'000'000);
  const Bytes bomb = png(1, 1, grey, row);
  row = {};
  const auto then = peak();
  check_fails([&] { scaled_picture(bomb, 4, 1); }, "damaged, or of a size or kind");
  CHECK(peak() - then < 16 << 10);
  CHECK(then - before < 400 << 10);  // what the test itself takes
}

// EXIF with one entry beside others: a TIFF file, whose directory is at its end.
Bytes exif(bool little, size_t value, size_t tag = 0x112, size_t type = 3) {
  const auto number = [&](size_t n, int bytes) {
    Bytes digits = big_endian(n);
    digits.erase(digits.begin(), digits.end() - bytes);
    if (little) std::reverse(digits.begin(), digits.end());
    return digits;
  };
  Bytes all = little ? Bytes{'I', 'I'} : Bytes{'M', 'M'};
  for (const Bytes& part : {number(42, 2), number(10, 4), Bytes{7, 7}, number(2, 2)}) append(all, part);
  for (const auto& [t, kind, v] : {std::tuple{size_t{0x110}, size_t{2}, size_t{5}}, {tag, type, value}})
    for (const Bytes& part : {number(t, 2), number(kind, 2), number(1, 4), number(v, 2), number(0, 2)})
      append(all, part);
  append(all, number(0, 4));
  return all;
}

Bytes jpeg_with(const Bytes& jpeg, const Bytes& content, uint8_t type = 0xe1) {
  Bytes segment{0xff, type, static_cast<uint8_t>((content.size() + 8) >> 8), static_cast<uint8_t>(content.size() + 8)};
  append(segment, {'E', 'x', 'i', 'f', 0, 0});
  append(segment, content);
  Bytes all(jpeg.begin(), jpeg.begin() + 2);
  append(all, segment);
  all.insert(all.end(), jpeg.begin() + 2, jpeg.end());
  return all;
}

TEST_CASE("scaled_picture: the orientation of EXIF, in all eight forms and both byte orders") {
  // What is to be looked at: 3 wide and 2 high; how a camera that was held otherwise stores it.
  const std::vector<std::pair<size_t, Bytes>> stored = {
      {3, {1, 2, 3, 4, 5, 6}}, {3, {3, 2, 1, 6, 5, 4}}, {3, {6, 5, 4, 3, 2, 1}}, {3, {4, 5, 6, 1, 2, 3}},
      {2, {1, 4, 2, 5, 3, 6}}, {2, {3, 6, 2, 5, 1, 4}}, {2, {6, 3, 5, 2, 4, 1}}, {2, {4, 1, 5, 2, 6, 3}}};
  Bytes photo_to_see;
  for (size_t form = 1; form <= 8; ++form)
    for (const bool little : {false, true}) {
      CAPTURE(form);
      const auto& [width, values] = stored[form - 1];
      const size_t height = 6 / width;
      Bytes samples, enlarged;  // since JPEG is not exact
      for (const uint8_t value : values) samples.push_back(static_cast<uint8_t>(30 * value));
      for (size_t y = 0; y < 16 * height; ++y)
        for (size_t x = 0; x < 16 * width; ++x) enlarged.push_back(samples[y / 16 * width + x / 16]);
      const Bytes content = exif(little, form);
      // The square at the centre begins in the first column.
      CHECK(scaled_picture(png(width, height, grey, samples, 8, chunk("eXIf", content)), 2, 1) ==
            Bytes{30, 60, 120, 150});
      const Bytes photo = jpeg(static_cast<int>(16 * width), static_cast<int>(16 * height), 1, enlarged);
      if (form == 1) photo_to_see = scaled_picture(photo, 4, 1);
      check_bytes(scaled_picture(jpeg_with(photo, content), 4, 1), {photo_to_see.begin(), photo_to_see.end()}, 3);
    }
}

TEST_CASE("scaled_picture: EXIF that is damaged or says nothing of the orientation changes nothing") {
  const Bytes samples = noise(6, 5), plain = scaled_picture(png(3, 2, grey, samples), 2, 1), whole = exif(true, 3);
  const auto with = [&](const Bytes& content) {
    return scaled_picture(png(3, 2, grey, samples, 8, chunk("eXIf", content)), 2, 1);
  };
  CHECK(with(whole) != plain);
  for (size_t size = 0; size + 7 < whole.size(); ++size)
    CHECK(with({whole.begin(), whole.begin() + long(size)}) == plain);
  CHECK(with(exif(true, 0)) == plain);
  CHECK(with(exif(true, 9)) == plain);
  CHECK(with(exif(true, 3, 0x113)) == plain);
  CHECK(with(exif(true, 3, 0x112, 4)) == plain);
  Bytes far = whole, endless = whole, none = whole, magic = whole;
  std::fill_n(far.begin() + 4, 4, uint8_t{255});       // a directory beyond the end
  std::fill_n(endless.begin() + 10, 2, uint8_t{255});  // of 65,535 entries, of which the second is good
  none[10] = 1;
  magic[2] = 43;
  CHECK(with(far) == plain);
  CHECK(with(endless) == with(whole));
  CHECK(with(none) == plain);
  CHECK(with(magic) == plain);
  Bytes sum = chunk("eXIf", whole);
  sum.back() ^= 1;
  CHECK(scaled_picture(png(3, 2, grey, samples, 8, sum), 2, 1) == plain);
  const Bytes photo = jpeg(3, 2, 1, samples), other = jpeg_with(photo, whole, 0xe2);
  CHECK(scaled_picture(other, 2, 1) == scaled_picture(photo, 2, 1));
  CHECK(scaled_picture(jpeg_with(jpeg_with(photo, exif(true, 3)), exif(true, 1)), 2, 1) ==
        scaled_picture(photo, 2, 1));  // the first counts
}

TEST_CASE("scaled_picture: a JPEG file of many scans, or of more pixels than its bytes can tell, is not decoded") {
  // One component; a Huffman table of one code, and scans of a byte.
  const auto scans = [](bool progressive, uint8_t side_256, size_t count, size_t padding) {
    Bytes file{0xff, 0xd8, 0xff, 0xdb, 0, 67, 0};
    append(file, Bytes(64, 1));
    append(file,
           {0xff, static_cast<uint8_t>(progressive ? 0xc2 : 0xc0), 0, 11, 8, side_256, 0, side_256, 0, 1, 1, 0x11, 0});
    for (const Bytes& table : {Bytes{0x00, 1}, Bytes{0x10, 1}}) {
      append(file, {0xff, 0xc4, 0, 20});
      append(file, table);
      append(file, Bytes(16));
    }
    for (size_t i = 0; i < count; ++i) {
      const uint8_t first = progressive && i ? 1 : 0, last = progressive && !i ? 0 : 63;  // of the coefficients
      append(file, {0xff, 0xda, 0, 8, 1, 1, 0, first, last, 0, 0});
    }
    append(file, {0xff, 0xd9});
    append(file, Bytes(padding));
    return file;
  };
  const auto fails = [](const Bytes& file, const std::string& words) {
    check_fails([&] { scaled_picture(file, 4, 1); }, words);
  };
  CHECK(scaled_picture(scans(true, 1, 20, 0), 4, 1).size() == 16);
  CHECK(scaled_picture(scans(false, 1, 4, 0), 4, 1).size() == 16);
  fails(scans(false, 1, 5, 0), "would take too long to decode: 5 scans of 256 x 256 pixels");
  fails(scans(true, 16, 200, 40'000), "would take too long to decode: 200 scans of 4096 x 4096 pixels");
  fails(scans(true, 16, 2, 0), "its header claims 4096 x 4096 pixels, which do not fit");
}

TEST_CASE("load_image_file: a picture as a set of one image; errors name the file") {
  const PictureFolder folder;
  write(folder.path / "a.png", numbered(1));
  const ImageSet set = load_image_file(folder.path / "a.png", 4, 1);
  CHECK(set.name == "a.png");
  CHECK(set.count == 1);
  CHECK(set.size() == 16);
  CHECK(set.pixels == noise(16, 1));
  CHECK(set.labels == std::vector<int32_t>{0});
  write(folder.path / "text.png", {'h', 'e', 'l', 'l', 'o'});
  write(folder.path / "empty.png", {});
  REQUIRE(mkfifo((folder.path / "pipe.png").c_str(), 0600) == 0);
  const auto fails = [&](const std::string& name, const std::string& words) {
    check_fails([&] { load_image_file(folder.path / name, 4, 1); }, (folder.path / name).string() + ": " + words);
  };
  fails("none.png", "no such file");
  fails("text.png", "not a PNG or JPEG file");
  fails("empty.png", "an empty file");
  fails("pipe.png", "not a regular file");
  fails("", "not a regular file");
}

// Every picture of a folder by its bytes: the set that it is in, and its label.
std::map<Bytes, std::pair<std::string, int32_t>> pictures(const ImageFolder& folder) {
  std::map<Bytes, std::pair<std::string, int32_t>> all;
  for (const ImageSet* set : {&folder.train, &folder.validation, &folder.test})
    for (int64_t i = 0; i < set->count; ++i)
      all[Bytes(set->image(i).begin(), set->image(i).end())] = {set->name, set->labels[static_cast<size_t>(i)]};
  return all;
}

void check_same(const ImageFolder& a, const ImageFolder& b) {
  for (const auto& [x, y] : {std::pair{&a.train, &b.train}, {&a.validation, &b.validation}, {&a.test, &b.test}}) {
    CHECK(x->name == y->name);
    CHECK(x->count == y->count);
    CHECK(x->size() == y->size());
    CHECK(x->pixels == y->pixels);
    CHECK(x->labels == y->labels);
    CHECK(x->class_names == y->class_names);
  }
  CHECK(a.skipped == b.skipped);
}

TEST_CASE("load_image_folder: three sets, classes from sub-folders, mixed by the hash of the content") {
  const PictureFolder folder;
  for (uint64_t i = 0; i < 200; ++i) {
    const std::string name = i < 100 ? "b/deep/er/" : i < 150 ? "c/" : "a b/";
    write(folder.path / (name + std::to_string(i)), numbered(i));
  }
  write(folder.path / "b/photo.jpg", jpeg(40, 30, 3, noise(3600, 1)));
  const ImageFolder set = folder.load();
  CHECK(set.train.name == "pictures of " + folder.path.string() + " (train)");
  CHECK(set.train.count + set.validation.count + set.test.count == 201);
  for (const ImageSet* part : {&set.train, &set.validation, &set.test}) {
    CHECK(part->class_names == std::vector<std::string>{"a b", "b", "c"});
    CHECK(part->height == 4);
    CHECK(part->width == 4);
    CHECK(part->channels == 1);
    CHECK(std::ssize(part->pixels) == part->count * 16);
    CHECK(std::ssize(part->labels) == part->count);
    CHECK(std::set<int32_t>(part->labels.begin(), part->labels.end()).size() == 3);
  }
  CHECK(std::abs(set.train.count - 161) < 20);  // about 3.5 standard deviations
  CHECK(std::abs(set.validation.count - 20) < 15);
  CHECK(set.skipped.empty());
  int changes = 0;
  for (size_t i = 1; i < set.train.labels.size(); ++i) changes += set.train.labels[i] != set.train.labels[i - 1];
  CHECK(changes > 60);
  const auto all = pictures(set);
  for (uint64_t i = 0; i < 200; ++i) CHECK(all.at(noise(16, i)).second == (i < 100 ? 1 : i < 150 ? 2 : 0));

  const ImageFolder colour = folder.load(6, 3);
  CHECK(colour.train.size() == 6 * 6 * 3);
  CHECK(colour.train.labels == set.train.labels);
  CHECK(colour.train.count == set.train.count);
}

TEST_CASE("load_image_folder: without sub-folders no classes; pictures beside sub-folders are a class") {
  const PictureFolder folder;
  for (uint64_t i = 0; i < 100; ++i) write(folder.path / (std::to_string(i) + ".png"), numbered(i));
  const ImageFolder plain = folder.load();
  CHECK(plain.train.class_names.empty());
  CHECK(std::all_of(plain.train.labels.begin(), plain.train.labels.end(), [](int32_t label) { return label == 0; }));
  fs::create_directory(folder.path / "empty");
  CHECK(folder.load().train.class_names.empty());
  write(folder.path / "more" / "x.png", numbered(100));
  const ImageFolder classes = folder.load();
  CHECK(classes.train.class_names == std::vector<std::string>{".", "more"});
  CHECK(pictures(classes).at(noise(16, 100)).second == 1);
}

TEST_CASE("load_image_folder: a picture stays in its set; copies are in the same one; names do not matter") {
  const PictureFolder folder;
  for (uint64_t i = 0; i < 100; ++i) write(folder.path / (std::to_string(i) + ".png"), numbered(i));
  const ImageFolder before = folder.load();
  for (uint64_t i = 0; i < 50; ++i) {
    write(folder.path / ("copy of " + std::to_string(i)), numbered(i));
    fs::rename(folder.path / (std::to_string(99 - i) + ".png"), folder.path / (std::to_string(i) + " renamed"));
  }
  write(folder.path / "new", numbered(1000));
  const ImageFolder after = folder.load();
  CHECK(after.train.count + after.validation.count + after.test.count == 151);
  auto all = pictures(after);
  all.erase(noise(16, 1000));
  CHECK(all == pictures(before));
  int64_t different = 0;
  for (const ImageSet* set : {&after.train, &after.validation, &after.test}) {
    std::set<Bytes> in;
    for (int64_t i = 0; i < set->count; ++i) in.emplace(set->image(i).begin(), set->image(i).end());
    different += std::ssize(in);
  }
  CHECK(different == 101);
}

TEST_CASE("load_image_folder: what is no picture is skipped, counted and named; hidden names are passed over") {
  const PictureFolder folder;
  for (uint64_t i = 0; i < 100; ++i) write(folder.path / (std::to_string(i) + ".png"), numbered(i));
  write(folder.path / ".hidden.png", numbered(200));
  write(folder.path / ".hidden" / "x.png", numbered(201));
  write(folder.path / "sub" / "text.png", {'h', 'i'});
  write(folder.path / "a cut.png", {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'});
  REQUIRE(mkfifo((folder.path / "a pipe").c_str(), 0600) == 0);
  fs::create_symlink("nowhere", folder.path / "a link");
  fs::create_directory_symlink("..", folder.path / "parent");
  fs::create_directory_symlink("/", folder.path / "root");
  fs::create_directory_symlink(".", folder.path / "sub" / "loop");
  const ImageFolder set = folder.load();
  CHECK(set.train.count + set.validation.count + set.test.count == 100);
  CHECK(set.skipped == std::vector<std::string>{"a cut.png: a PNG file that ends early",
                                                "a link: cannot be read: No such file or directory",
                                                "a pipe: not a regular file", "sub/text.png: not a PNG or JPEG file"});
  for (int i = 0; i < 10; ++i) write(folder.path / ("z" + std::to_string(i)), {'x'});
  const ImageFolder more = folder.load();
  CHECK(more.skipped.size() == 14);
  // The folder itself by another path.
  CHECK(load_image_folder(folder.path / "sub" / "loop" / "..", 4, 1, "").train.pixels == set.train.pixels);
}

TEST_CASE("load_image_folder: the cache is used until a file changes, and rebuilt if it is damaged") {
  const PictureFolder folder;
  for (uint64_t i = 0; i < 100; ++i) write(folder.path / (i < 50 ? "a" : "b") / std::to_string(i), numbered(i));
  write(folder.path / "text", {'x'});
  int64_t read_files = 0;
  const auto progress = [&](int64_t done, int64_t of) {
    CHECK(of == 101);
    read_files = done;
  };
  const ImageFolder first = load_image_folder(folder.path, 4, 1, folder.cache, progress);
  CHECK_FALSE(first.from_cache);
  CHECK(read_files == 101);
  CHECK(first.cache.parent_path() == folder.cache);
  CHECK(std::distance(fs::directory_iterator(folder.cache), {}) == 1);  // nothing temporary stays
  const ImageFolder second = folder.load();
  CHECK(second.from_cache);
  CHECK(second.cache == first.cache);
  check_same(first, second);

  CHECK(folder.load(5).cache != first.cache);  // another size is another file
  CHECK(folder.load().from_cache);

  const Bytes good = read(first.cache);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, good.size() / 2, good.size() - 1}) {
    write(first.cache, {good.begin(), good.begin() + static_cast<long>(size)});
    const ImageFolder again = folder.load();
    CHECK_FALSE(again.from_cache);
    check_same(first, again);
  }
  CHECK(read(first.cache) == good);
  for (size_t at = 0; at < good.size(); at += 1 + at / 4) {
    Bytes damaged = good;
    damaged[at] ^= 0x81;
    write(first.cache, damaged);
    CHECK_FALSE(folder.load().from_cache);
  }
  Bytes longer = good;
  longer.push_back(0);
  write(first.cache, longer);
  CHECK_FALSE(folder.load().from_cache);

  // What no reader wrote, though the checksum is right: the number of classes, the first name, then of the first set
  // the number of pictures, that of labels, and labels.
  const std::string whole(good.begin(), good.end());
  const size_t classes = whole.find('\n') + 1, count = classes + 8 + 2 * (8 + 1), labels = count + 16;
  for (const auto& [at, value] : {std::pair{classes + 5, 1},
                                  {classes + 8 + 5, 1},
                                  {count, 1},
                                  {count + 5, 1},
                                  {count + 8 + 5, 1},
                                  {labels, 2},
                                  {labels + 3, 255}}) {
    CAPTURE(at);
    std::string impossible = whole;
    impossible[at] = static_cast<char>(value);
    write_cache(first.cache, impossible);
    const ImageFolder again = folder.load();
    CHECK_FALSE(again.from_cache);
    check_same(first, again);
  }

  fs::last_write_time(folder.path / "a" / "7", fs::file_time_type::clock::now() + std::chrono::seconds(5));
  const ImageFolder touched = folder.load();
  CHECK_FALSE(touched.from_cache);
  check_same(first, touched);
  write(folder.path / "b" / "new", numbered(1000));
  CHECK_FALSE(folder.load().from_cache);
  fs::remove(folder.path / "b" / "new");
  CHECK_FALSE(folder.load().from_cache);
  CHECK(folder.load().from_cache);

  CHECK(load_image_folder(folder.path, 4, 1, "").cache.empty());
  const ImageFolder uncached = load_image_folder(folder.path, 4, 1, folder.path / "text" / "cache");
  CHECK(uncached.cache.empty());
  check_same(first, uncached);
}

TEST_CASE("load_image_folder: what cannot be a data set is an error that says what was found") {
  const PictureFolder folder;
  const std::string path = folder.path.string();
  const auto fails = [&](const std::string& words) { check_fails([&] { folder.load(); }, path + ": " + words); };
  fails("no PNG or JPEG picture among 0 files");
  write(folder.path / "readme.txt", {'x'});
  fails("no PNG or JPEG picture among 1 file; skipped readme.txt: not a PNG or JPEG file");
  for (int i = 0; i < 9; ++i) write(folder.path / std::to_string(i), {});
  fails("no PNG or JPEG picture among 10 files; skipped 0: an empty file, 1: an empty file");
  write(folder.path / "a.png", numbered(1));
  fails("only 1 picture, of which 0 fell to training, 0 to validation and 1 to testing; each needs one: add pictures");
  check_fails([&] { load_image_folder(folder.path / "none", 4, 1, ""); }, path + "/none: no such folder");
  check_fails([&] { load_image_folder(folder.path / "a.png", 4, 1, ""); }, path + "/a.png: not a folder");
  check_fails([&] { load_image_folder(folder.path, 0, 1, ""); }, "pictures of 0 x 0 x 1");
  check_fails([&] { load_image_folder(folder.path, 4, 4, ""); }, "channels are 1 or 3");
  write(folder.path / "caf\xe9" / "1.png", numbered(1));
  fails("a class: \"caf\\xe9\" is not UTF-8");
  CHECK_FALSE(fs::exists(folder.cache));
}

TEST_CASE("cache_directory: $XDG_CACHE_HOME, else $HOME/.cache, and only if absolute") {
  const auto value = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  const std::string cache = value("XDG_CACHE_HOME"), home = value("HOME");
  setenv("XDG_CACHE_HOME", "/somewhere", 1);
  setenv("HOME", "/home/me", 1);
  CHECK(cache_directory() == "/somewhere/runnel");
  setenv("XDG_CACHE_HOME", "relative", 1);
  CHECK(cache_directory() == "/home/me/.cache/runnel");
  setenv("HOME", "", 1);
  CHECK(cache_directory().empty());
  cache.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  home.empty() ? unsetenv("HOME") : setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace runnel::test
