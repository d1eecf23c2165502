#include "datasets/mnist.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "engine/check.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr const char* download = "datasets/download.sh mnist";

// One IDX file, read from its beginning. gzread decompresses gzip and passes anything else through.
class IdxReader {
 public:
  explicit IdxReader(const fs::path& path) : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
    check(file_ != nullptr, path_.string(), ": cannot be opened: ", std::strerror(errno));
  }

  [[noreturn]] void damaged(const std::string& what) const {
    fail(path_.string(), ": ", what, "; remove it and fetch it again with: ", download);
  }

  uint32_t number() {
    const std::vector<uint8_t> b = read(4);
    if (b.size() < 4) damaged("ends inside its header");
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
  }

  // All that is left, which the header says is `size` bytes. Grows as bytes arrive: an absurd header costs nothing.
  std::vector<uint8_t> rest(uint64_t size) {
    std::vector<uint8_t> bytes = read(size);
    if (bytes.size() < size)
      damaged("truncated: its header promises " + std::to_string(size) + " bytes and " + std::to_string(bytes.size()) +
              " follow");
    if (!read(1).empty()) damaged("has more bytes than the " + std::to_string(size) + " its header promises");
    return bytes;
  }

 private:
  // Up to `size` bytes, fewer at the end of the file.
  std::vector<uint8_t> read(uint64_t size) {
    constexpr uint64_t chunk = 1 << 20;
    std::vector<uint8_t> bytes;
    while (bytes.size() < size) {
      const size_t had = bytes.size(), wanted = std::min<uint64_t>(chunk, size - had);
      bytes.resize(had + wanted);
      const int got = gzread(file_.get(), bytes.data() + had, static_cast<unsigned>(wanted));
      int code = Z_OK;
      const char* message = gzerror(file_.get(), &code);
      if (code == Z_ERRNO) fail(path_.string(), ": cannot be read: ", std::strerror(errno));
      if (code == Z_BUF_ERROR) damaged("truncated: its gzip data ends early");
      if (got < 0 || code != Z_OK) damaged(std::string("damaged gzip data: ") + message);
      bytes.resize(had + static_cast<size_t>(got));
      if (static_cast<size_t>(got) < wanted) break;
    }
    return bytes;
  }

  fs::path path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

void check_magic(IdxReader& file, uint32_t expected) {
  const uint32_t magic = file.number();
  if (magic != expected)
    file.damaged("its magic number is " + std::to_string(magic) + " and not " + std::to_string(expected));
}

void read_images(const fs::path& path, ImageSet& set) {
  IdxReader file(path);
  check_magic(file, 2051);
  const uint32_t count = file.number(), height = file.number(), width = file.number();
  if (height != 28 || width != 28)
    file.damaged("holds images of " + std::to_string(height) + " x " + std::to_string(width) + ", not 28 x 28");
  if (count == 0) file.damaged("holds no images");
  set.count = count;
  set.height = height;
  set.width = width;
  set.channels = 1;
  set.pixels = file.rest(uint64_t{count} * 28 * 28);
}

void read_labels(const fs::path& path, const fs::path& images, ImageSet& set) {
  IdxReader file(path);
  check_magic(file, 2049);
  const uint32_t count = file.number();
  if (count != set.count)
    file.damaged("holds " + std::to_string(count) + " labels, but " + images.string() + " has " +
                 std::to_string(set.count) + " images");
  set.labels = file.rest(count);
  const auto wrong = std::find_if(set.labels.begin(), set.labels.end(), [](uint8_t label) { return label > 9; });
  if (wrong != set.labels.end())
    file.damaged("label number " + std::to_string(wrong - set.labels.begin()) + " is " + std::to_string(*wrong) +
                 " and not a digit");
}

std::optional<fs::path> find(const fs::path& directory, const std::string& stem, const std::string& kind) {
  for (const fs::path& folder : {directory / "mnist", directory})
    for (const char* separator : {"-", "."})
      for (const char* ending : {"", ".gz"}) {
        const fs::path path = folder / (stem + separator + kind + ending);
        std::error_code ignored;
        if (fs::exists(path, ignored)) return path;
      }
  return {};
}

fs::path find_or_fail(const fs::path& directory, const std::string& stem, const std::string& kind) {
  const std::optional<fs::path> path = find(directory, stem, kind);
  check(path.has_value(), "MNIST: no ", stem, "-", kind, " (or .gz) in ", (directory / "mnist").string(), " or ",
        directory.string(), "; fetch it with: ", download, " ", directory.string(),
        ", or use drawn digits with: --data synthetic");
  return *path;
}

}  // namespace

fs::path data_directory(const std::string& option) {
  if (!option.empty()) return option;
  const char* variable = std::getenv("RUNNEL_DATA");
  return variable && *variable ? variable : "data";
}

ImageSet load_mnist(const fs::path& directory, Split split) {
  const std::string stem = split == Split::train ? "train" : "t10k";
  const fs::path images = find_or_fail(directory, stem + "-images", "idx3-ubyte");
  const fs::path labels = find_or_fail(directory, stem + "-labels", "idx1-ubyte");
  ImageSet set;
  set.name = split == Split::train ? "MNIST (train)" : "MNIST (test)";
  read_images(images, set);
  read_labels(labels, images, set);
  return set;
}

}  // namespace runnel
