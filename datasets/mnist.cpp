#include "datasets/mnist.h"

#include <algorithm>

#include "engine/check.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

const Source mnist_source{
    "MNIST", "datasets/download.sh mnist", {"mnist", ""}, ", or use drawn digits with: --data synthetic"};

constexpr uint32_t max_images = 1'000'000;  // MNIST has 60,000, its successors in the same format up to 814,255

uint32_t number(DataFile& file) {
  const std::vector<uint8_t> b = file.read(4);
  if (b.size() < 4) file.damaged("ends inside its header");
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
}

// All that is left, which the header says is `size` bytes.
std::vector<uint8_t> rest(DataFile& file, uint64_t size) {
  std::vector<uint8_t> bytes = file.read(size);
  if (bytes.size() < size)
    file.damaged("truncated: its header promises " + std::to_string(size) + " bytes and " +
                 std::to_string(bytes.size()) + " follow");
  if (!file.read(1).empty()) file.damaged("has more bytes than the " + std::to_string(size) + " its header promises");
  return bytes;
}

void check_magic(DataFile& file, uint32_t expected) {
  const uint32_t magic = number(file);
  if (magic != expected)
    file.damaged("its magic number is " + std::to_string(magic) + " and not " + std::to_string(expected));
}

void read_images(const fs::path& path, ImageSet& set) {
  DataFile file(mnist_source, path);
  check_magic(file, 2051);
  const uint32_t count = number(file), height = number(file), width = number(file);
  if (height != 28 || width != 28)
    file.damaged("holds images of " + std::to_string(height) + " x " + std::to_string(width) + ", not 28 x 28");
  if (count == 0) file.damaged("holds no images");
  if (count > max_images)
    file.damaged("claims " + std::to_string(count) + " images; more than " + std::to_string(max_images) +
                 " are not read");
  set.count = count;
  set.height = height;
  set.width = width;
  set.channels = 1;
  set.pixels = rest(file, uint64_t{count} * 28 * 28);
}

void read_labels(const fs::path& path, const fs::path& images, ImageSet& set) {
  DataFile file(mnist_source, path);
  check_magic(file, 2049);
  const uint32_t count = number(file);
  if (count != set.count)
    file.damaged("holds " + std::to_string(count) + " labels, but " + images.string() + " has " +
                 std::to_string(set.count) + " images");
  const std::vector<uint8_t> numbers = rest(file, count);
  set.labels.assign(numbers.begin(), numbers.end());
  for (int32_t i = 0; i <= std::max(9, std::ranges::max(set.labels)); ++i) set.class_names.push_back(std::to_string(i));
}

fs::path find(const fs::path& directory, const std::string& stem, const std::string& kind) {
  return find_file(mnist_source, directory, {stem + "-" + kind, stem + "." + kind});
}

}  // namespace

ImageSet load_mnist(const fs::path& directory, Split split) {
  const std::string stem = split == Split::train ? "train" : "t10k";
  const fs::path images = find(directory, stem + "-images", "idx3-ubyte");
  const fs::path labels = find(directory, stem + "-labels", "idx1-ubyte");
  ImageSet set;
  set.name = split == Split::train ? "MNIST (train)" : "MNIST (test)";
  read_images(images, set);
  read_labels(labels, images, set);
  return set;
}

}  // namespace runnel
