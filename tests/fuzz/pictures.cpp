// Pictures, PNG and JPEG, by the reader that `complete --image` and folders of pictures use.
#include "datasets/image_file.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  const auto path = fuzz::write("picture", data, size);
  return fuzz::ends_well([&] { load_image_file(path, 6, size % 2 ? 3 : 1); });
}
