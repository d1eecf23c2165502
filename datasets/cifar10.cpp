#include "datasets/cifar10.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

const Source cifar10_source{"CIFAR-10", "datasets/download.sh cifar10", {"cifar-10-batches-bin", "cifar10", ""}};

const std::vector<std::string> classes = {"airplane", "automobile", "bird",  "cat",  "deer",
                                          "dog",      "frog",       "horse", "ship", "truck"};

constexpr size_t plane = 32 * 32, record = 1 + 3 * plane, most = 10000;

void append(ImageSet& set, const fs::path& path) {
  DataFile file(cifar10_source, path);
  const std::vector<uint8_t> bytes = file.read(most * record);
  const size_t count = bytes.size() / record;
  if (bytes.empty()) file.damaged("holds no images");
  if (bytes.size() % record)
    file.damaged("truncated: its " + std::to_string(bytes.size()) + " bytes end inside image number " +
                 std::to_string(count) + " (an image has 3073)");
  if (!file.read(1).empty()) file.damaged("longer than 10000 images of 3073 bytes");
  for (size_t i = 0; i < count; ++i) {
    const uint8_t label = bytes[i * record];
    if (label > 9)
      file.damaged("the label of image number " + std::to_string(i) + " is " + std::to_string(label) + ", above 9");
    set.labels.push_back(label);
  }
  const size_t had = set.pixels.size();
  set.pixels.resize(had + count * 3 * plane);
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* const red = bytes.data() + i * record + 1;
    uint8_t* const rgb = set.pixels.data() + had + i * 3 * plane;
    for (size_t p = 0; p < plane; ++p)
      for (size_t c = 0; c < 3; ++c) rgb[3 * p + c] = red[c * plane + p];
  }
  set.count += static_cast<int64_t>(count);
}

}  // namespace

ImageSet load_cifar10(const fs::path& directory, Split split) {
  std::vector<std::string> names{"test_batch.bin"};
  if (split == Split::train)
    names = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
  std::vector<fs::path> paths;
  for (const std::string& name : names) paths.push_back(find_file(cifar10_source, directory, {name}));
  ImageSet set{split == Split::train ? "CIFAR-10 (train)" : "CIFAR-10 (test)", 0, 32, 32, 3, {}, {}, classes};
  for (const fs::path& path : paths) append(set, path);
  return set;
}

}  // namespace runnel
