// IDX files, gzip'd or not: the first byte says how many of the others are images; the rest are labels.
#include <algorithm>

#include "datasets/mnist.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  if (size == 0) return 0;
  const size_t images = std::min<size_t>(size_t{data[0]} * 16, size - 1);
  const auto path = fuzz::write("train-images-idx3-ubyte", data + 1, images);
  fuzz::write("train-labels-idx1-ubyte", data + 1 + images, size - 1 - images);
  return fuzz::ends_well([&] { load_mnist(path.parent_path(), Split::train); });
}
