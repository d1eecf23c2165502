#include "datasets/text_file.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "datasets/files.h"
#include "engine/check.h"
#include "engine/file.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

// All regular files below a folder, sorted.
void append_files(const fs::path& folder, std::vector<fs::path>& files) {
  check(access(folder.c_str(), R_OK | X_OK) == 0, "the folder ", folder.string(),
        " cannot be read: ", std::strerror(errno));
  std::vector<fs::path> inside = entries(folder);
  std::ranges::sort(inside);
  for (const fs::path& path : inside) {
    if (path.filename().string().starts_with('.') || fs::is_symlink(path)) continue;
    if (fs::is_directory(path)) append_files(path, files);
    if (fs::is_regular_file(path)) files.push_back(path);
  }
}

}  // namespace

std::vector<uint8_t> read_text(const fs::path& path) {
  std::vector<fs::path> files{path};
  std::error_code error;
  check(fs::exists(path, error), path.string(), " is not there; datasets/download.sh shakespeare fetches a text");
  if (fs::is_directory(path, error)) {
    files.clear();
    append_files(path, files);
    check(!files.empty(), "no file lies in the folder ", path.string());
  }
  std::vector<uint8_t> all;
  for (const fs::path& file : files) {
    const std::vector<uint8_t> bytes =
        DataFile({.name = "text", .download = {}, .folders = {}}, file).read(std::numeric_limits<uint64_t>::max());
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  check(all.size() >= 2, path.string(), " has ", all.size(), " bytes; a language model needs two or more");
  return all;
}

Text load_text(const fs::path& path, int64_t length) {
  std::vector<uint8_t> all = read_text(path);
  const auto split = all.end() - std::ssize(all) / 10;
  check(all.end() - split > length, path.string(), " has ", all.size(), " bytes; for windows of ", length, " it takes ",
        10 * (length + 1), " or more, of which the last tenth is for validation");
  Text text{path.string(), {}, {split, all.end()}};
  all.erase(split, all.end());
  text.train = std::move(all);
  return text;
}

uint32_t checksum(const Text& text) {
  uLong crc = crc32_z(0, nullptr, 0);
  for (const std::vector<uint8_t>* part : {&text.train, &text.validation})
    crc = crc32_z(crc, part->data(), part->size());
  return static_cast<uint32_t>(crc);
}

TextBatch text_windows(const std::vector<uint8_t>& text, const std::vector<int64_t>& begins, int64_t length,
                       bool kept) {
  const Shape shape{std::ssize(begins), length};
  TextBatch batch{Indices(shape), Indices(shape), Tensor::full(Shape{std::ssize(begins)}, kept ? 1.0f : 0.0f)};
  const auto size = std::ssize(text);
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t t = 0; t < length; ++t) {
      const int64_t i = begins[static_cast<size_t>(b)] + t;
      batch.tokens.data()[b * length + t] = text[static_cast<size_t>(i % size)];
      batch.targets.data()[b * length + t] = text[static_cast<size_t>((i + 1) % size)];
    }
  return batch;
}

}  // namespace runnel
