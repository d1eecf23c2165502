// Decoding is stb_image's, restricted to PNG and JPEG. Some checks that it lacks are made here: it neither notices that
// a JPEG file ends early nor verifies PNG's checksums; version 2.27 writes outside its Huffman tables if a file says so
// and returns uninitialised memory where a file leaves samples out; and a small file can make it allocate gigabytes.
#include "datasets/image_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "engine/check.h"

namespace {
thread_local size_t largest_allocation = 0;  // that stb_image may make in this thread; a failed one is an error there
void* allocate(size_t bytes) { return bytes <= largest_allocation ? std::calloc(1, bytes) : nullptr; }
void* reallocate(void* old, size_t bytes) { return bytes <= largest_allocation ? std::realloc(old, bytes) : nullptr; }
}  // namespace

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#define STBI_MALLOC(bytes) allocate(bytes)
#define STBI_REALLOC(old, bytes) reallocate(old, bytes)
#define STBI_FREE(old) std::free(old)
#define STBI_ASSERT(holds) runnel::check(holds, "damaged")
#define STBI_NO_FAILURE_STRINGS
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_NO_STDIO
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#include <stb/stb_image.h>
#pragma GCC diagnostic pop

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t max_bytes = uint64_t{1} << 29;          // of a file, and of its decoded pixels
constexpr uint64_t many_bytes = uint64_t{1} << 26;         // from here on, one picture is decoded at a time
constexpr double luminance[3] = {0.2126, 0.7152, 0.0722};  // of sRGB's primaries

using Bytes = std::span<const uint8_t>;

bool begins_with(Bytes bytes, std::initializer_list<uint8_t> start) {
  return bytes.size() >= start.size() && std::equal(start.begin(), start.end(), bytes.begin());
}
bool is_png(Bytes bytes) { return begins_with(bytes, {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}); }
bool is_jpeg(Bytes bytes) { return begins_with(bytes, {0xff, 0xd8, 0xff}); }

uint64_t big_endian(Bytes bytes) {
  uint64_t number = 0;
  for (const uint8_t byte : bytes) number = number << 8 | byte;
  return number;
}

// Metadata of the containers.
struct Container {
  Bytes exif;                // empty: none
  uint64_t scans = 0;        // of a JPEG file
  bool progressive = false;  // a JPEG file that is
};

// A chunk is its length, a type of 4 letters, data, and the CRC of type and data. The last one is IEND.
Container check_png(Bytes file) {
  Container found;
  for (size_t at = 8;;) {
    check(file.size() - at >= 12, "a PNG file that ends early");
    const uint64_t length = big_endian(file.subspan(at, 4));
    check(file.size() - at - 12 >= length, "a PNG file that ends early");
    const Bytes content = file.subspan(at + 4, 4 + length), sum = file.subspan(at + 8 + length, 4);
    const bool critical = !(content[0] & 0x20);
    const bool sound = crc32(0, content.data(), static_cast<uInt>(content.size())) == big_endian(sum);
    check(!critical || sound, "a damaged PNG file: a checksum is wrong");
    if (std::memcmp(content.data(), "IEND", 4) == 0) return found;
    if (std::memcmp(content.data(), "eXIf", 4) == 0 && sound) found.exif = content.subspan(4);
    at += 12 + length;
  }
}

// A segment of Huffman tables: each is a byte, for every length of 1 to 16 bits how many codes have it, and a value for
// each code, of which there are at most 256.
void check_huffman_tables(Bytes tables) {
  while (!tables.empty()) {
    const Bytes counts = tables.subspan(1).first(std::min<size_t>(tables.size() - 1, 16));
    const size_t codes = std::accumulate(counts.begin(), counts.end(), size_t{0});
    check(codes <= 256, "a damaged JPEG file: a Huffman table of ", codes, " codes");
    check(tables.size() >= 17 + codes, "a damaged JPEG file: an incomplete Huffman table");
    tables = tables.subspan(17 + codes);
  }
}

// Segments begin with ff and a type, have a length unless they are restart markers and the like, and the image's data
// follow some. Inside the data, ff is followed by 0 or by the type of a restart marker. The end is ff d9.
Container check_jpeg(Bytes file) {
  Container found;
  for (size_t at = 2; at + 1 < file.size(); ++at) {
    const uint8_t type = file[at + 1];
    if (file[at] != 0xff || type <= 1 || type == 0xff || (type >= 0xd0 && type <= 0xd8)) continue;
    if (type == 0xd9) return found;
    const uint64_t left = file.size() - at - 2, length = left < 2 ? 2 : big_endian(file.subspan(at + 2, 2));
    if (length > left) break;
    check(length >= 2, "a damaged JPEG file: a segment of ", length, " bytes");
    const Bytes content = file.subspan(at + 4, length - 2);
    if (type == 0xc4) check_huffman_tables(content);
    if (type == 0xc2) found.progressive = true;
    if (type == 0xda) ++found.scans;
    if (type == 0xe1 && found.exif.empty() && begins_with(content, {'E', 'x', 'i', 'f', 0, 0}))
      found.exif = content.subspan(6);
    at += 1 + length;
  }
  fail("a JPEG file that ends early");
}

// A scan takes time for every pixel, however few bytes it has: up to 1.3 ns in a progressive file, of which encoders
// write some ten, and 4 ns in another one, where each component is in one scan. And a file has at least one bit for
// each block of 8 x 8 pixels.
void check_effort(const Container& jpeg, uint64_t size, uint64_t width, uint64_t height) {
  constexpr uint64_t pixels_of_all_scans = uint64_t{1} << 29;
  const uint64_t most = jpeg.progressive ? std::max<uint64_t>(16, pixels_of_all_scans / (width * height)) : 4;
  check(width * height <= 512 * size, "damaged: its header claims ", width, " x ", height, " pixels, which do not fit ",
        size, " bytes");
  check(jpeg.scans <= most, "would take too long to decode: ", jpeg.scans, " scans of ", width, " x ", height,
        " pixels; ", most, " are the most");
}

// EXIF is a TIFF file: byte order, 42, and where a directory is, whose entries are a tag, a type, a count and a value.
// -> 1 .. 8; 1, as it stands, if there is none or it is damaged.
int orientation(Bytes exif) {
  constexpr uint64_t tag = 0x112, type_short = 3;
  const bool reversed = begins_with(exif, {'I', 'I', 42, 0});
  if (!reversed && !begins_with(exif, {'M', 'M', 0, 42})) return 1;
  const auto number = [&](uint64_t at, size_t bytes) -> uint64_t {  // 0 beyond the end
    if (at > exif.size() || exif.size() - at < bytes) return 0;
    std::array<uint8_t, 4> digits{};
    std::copy_n(exif.begin() + static_cast<std::ptrdiff_t>(at), bytes, digits.begin());
    if (reversed) std::reverse(digits.begin(), digits.begin() + static_cast<std::ptrdiff_t>(bytes));
    return big_endian(Bytes(digits).first(bytes));
  };
  const uint64_t directory = number(4, 4), count = number(directory, 2);
  for (uint64_t entry = directory + 2; entry < directory + 2 + 12 * count; entry += 12)
    if (number(entry, 2) == tag && number(entry + 2, 2) == type_short && number(entry + 4, 4) == 1)
      if (const uint64_t value = number(entry + 8, 2); value >= 1 && value <= 8) return static_cast<int>(value);
  return 1;
}

// Where the pixels of a picture, as it is to be looked at, are among those of the file.
struct View {
  int64_t height, width;
  int64_t first = 0, down = 0, right = 0;  // place of the upper left pixel; from a pixel to the one below, to the right

  View(int64_t stored_height, int64_t stored_width, int orientation)
      : height(stored_height), width(stored_width), down(stored_width), right(1) {
    const auto is_one_of = [&](std::initializer_list<int> some) { return std::ranges::count(some, orientation) > 0; };
    if (is_one_of({3, 4, 6, 7})) first += (stored_height - 1) * stored_width, down = -down;  // from the last row
    if (is_one_of({2, 3, 7, 8})) first += stored_width - 1, right = -right;                  // from the last column
    if (orientation >= 5) std::swap(height, width), std::swap(down, right);                  // rows are columns
  }
};

double to_linear(double srgb) { return srgb <= 0.04045 ? srgb / 12.92 : std::pow((srgb + 0.055) / 1.055, 2.4); }

// [65536] of samples of 16 bits; a sample of 8 bits is 257 times as large.
const std::vector<float>& linear_table() {
  static const std::vector<float> table = [] {
    std::vector<float> values(65536);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(to_linear(static_cast<double>(i) / 65535));
    return values;
  }();
  return table;
}

uint8_t to_srgb(double linear) {
  static const std::array<double, 255> between = [] {  // byte k and byte k + 1
    std::array<double, 255> values{};
    for (size_t k = 0; k < values.size(); ++k) values[k] = to_linear((static_cast<double>(k) + 0.5) / 255);
    return values;
  }();
  return static_cast<uint8_t>(std::upper_bound(between.begin(), between.end(), linear) - between.begin());
}

struct Tap {
  int64_t at;
  double weight;
};

// Which of `from` pixels in a row make each of `to`, and with what weights, whose sum is 1.
std::vector<std::vector<Tap>> taps(int64_t from, int64_t to) {
  std::vector<std::vector<Tap>> all(static_cast<size_t>(to));
  for (int64_t i = 0; i < to; ++i) {
    std::vector<Tap>& of = all[static_cast<size_t>(i)];
    if (from >= to) {  // in units of 1 / to, pixel x covers [x to, (x + 1) to), and the new one [i from, (i + 1) from)
      for (int64_t x = i * from / to; x * to < (i + 1) * from; ++x) {
        const int64_t covered = std::min((x + 1) * to, (i + 1) * from) - std::max(x * to, i * from);
        of.push_back({x, static_cast<double>(covered) / static_cast<double>(from)});
      }
    } else {  // between the two nearest centres; beyond the outermost ones, those
      const double place = (static_cast<double>(i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5;
      const double x = std::clamp(place, 0.0, static_cast<double>(from - 1)), left = std::floor(x);
      of.push_back({static_cast<int64_t>(left), 1 - (x - left)});
      if (x > left) of.push_back({static_cast<int64_t>(left) + 1, x - left});
    }
  }
  return all;
}

// Each pixel has samples, being grey, grey and alpha, r g b, or r g b and alpha. `unit` turns a sample into one of 16
// bits.
template <class T>
std::vector<uint8_t> scaled(const T* pixels, size_t unit, const View& view, int64_t samples, int64_t side,
                            int64_t channels) {
  const std::vector<float>& linear = linear_table();
  const int64_t square = std::min(view.height, view.width);
  const int64_t top = (view.height - square) / 2, left = (view.width - square) / 2;
  const int64_t colours = samples >= 3 ? 3 : 1;
  const std::vector<std::vector<Tap>> weights = taps(square, side);
  std::vector<uint8_t> bytes;
  bytes.reserve(static_cast<size_t>(side * side * channels));
  for (const std::vector<Tap>& rows : weights)
    for (const std::vector<Tap>& columns : weights) {
      double rgb[3] = {}, opaque = 0;
      for (const Tap& row : rows)
        for (const Tap& column : columns) {
          const T* const pixel =
              pixels + (view.first + (top + row.at) * view.down + (left + column.at) * view.right) * samples;
          double weight = row.weight * column.weight;
          if (samples % 2 == 0) weight *= static_cast<double>(pixel[colours] * unit) / 65535;
          for (int64_t c = 0; c < colours; ++c) rgb[c] += weight * linear[pixel[c] * unit];
          opaque += weight;
        }
      if (colours == 1) rgb[1] = rgb[2] = rgb[0];
      if (samples % 2 == 0)
        for (double& value : rgb) value += 1 - opaque;
      if (channels == 1)
        bytes.push_back(to_srgb(luminance[0] * rgb[0] + luminance[1] * rgb[1] + luminance[2] * rgb[2]));
      else
        for (const double value : rgb) bytes.push_back(to_srgb(value));
    }
  return bytes;
}

}  // namespace

std::vector<uint8_t> read_picture_file(const fs::path& path) {
  std::error_code ignored;
  check(fs::is_regular_file(path, ignored), fs::exists(path, ignored) ? "not a regular file" : "no such file");
  std::ifstream file(path, std::ios::binary);
  check(file.is_open(), "cannot be read: ", std::strerror(errno));
  std::vector<uint8_t> bytes(8);
  const auto read = [&](size_t from) {
    file.read(reinterpret_cast<char*>(bytes.data() + from), static_cast<std::streamsize>(bytes.size() - from));
    bytes.resize(from + static_cast<size_t>(file.gcount()));
  };
  read(0);
  check(is_png(bytes) || is_jpeg(bytes), bytes.empty() ? "an empty file" : "not a PNG or JPEG file");
  const uint64_t size = fs::file_size(path, ignored);
  check(size <= max_bytes, "larger than ", max_bytes >> 20, " MiB");
  if (bytes.size() < size) {
    const size_t had = bytes.size();
    bytes.resize(size);
    read(had);
  }
  return bytes;
}

std::vector<uint8_t> scaled_picture(Bytes file, int64_t side, int64_t channels) {
  check(side >= 1 && side <= 4096 && (channels == 1 || channels == 3), "scaled_picture: to ", side, " x ", side, " x ",
        channels, "; channels are 1 or 3");
  check(is_png(file) || is_jpeg(file), "not a PNG or JPEG file");
  check(file.size() <= max_bytes, "larger than ", max_bytes >> 20, " MiB");
  const Container container = is_png(file) ? check_png(file) : check_jpeg(file);

  int width = 0, height = 0, samples = 0;
  const int size = static_cast<int>(file.size());
  const auto check_decoded = [](bool done) { check(done, "damaged, or of a size or kind that cannot be read"); };
  largest_allocation = 1 << 18;  // for the decoder's own state
  check_decoded(stbi_info_from_memory(file.data(), size, &width, &height, &samples));
  const bool wide = stbi_is_16_bit_from_memory(file.data(), size);
  const uint64_t w = static_cast<uint64_t>(width), h = static_cast<uint64_t>(height);
  const uint64_t decoded = w * h * static_cast<uint64_t>(samples) * (wide ? 2 : 1);  // both sides are below 2^24
  check(decoded <= max_bytes, "too large: its header claims ", w, " x ", h, " pixels, which would take more than ",
        max_bytes >> 20, " MiB");

  if (is_jpeg(file)) check_effort(container, file.size(), w, h);

  // Enough for what a picture of this size takes in its largest block: compressed data that double as they arrive,
  // coefficients of 2 bytes for every sample of an image that is padded to blocks of 32 x 32.
  largest_allocation = std::min(2 * max_bytes, 2 * file.size() + 16 * (w + 32) * (h + 32) + (1 << 18));
  static std::mutex one_at_a_time;
  std::unique_lock<std::mutex> lock(one_at_a_time, std::defer_lock);
  if (decoded > many_bytes) lock.lock();
  const auto load = [&](auto* pixels, size_t unit) {
    const std::unique_ptr<std::remove_pointer_t<decltype(pixels)>, void (*)(void*)> owner(pixels, stbi_image_free);
    check_decoded(pixels != nullptr);
    return scaled(pixels, unit, View(height, width, orientation(container.exif)), samples, side, channels);
  };
  return wide ? load(stbi_load_16_from_memory(file.data(), size, &width, &height, &samples, 0), 1)
              : load(stbi_load_from_memory(file.data(), size, &width, &height, &samples, 0), 257);
}

ImageSet load_image_file(const fs::path& path, int64_t side, int64_t channels) try {
  return {.name = path.filename().string(),
          .count = 1,
          .height = side,
          .width = side,
          .channels = channels,
          .pixels = scaled_picture(read_picture_file(path), side, channels),
          .labels = {0}};
} catch (const Error& error) {
  fail(path.string(), ": ", error.what());
}

}  // namespace runnel
