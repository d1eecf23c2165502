// CIFAR-10's binary batches, gzip'd or not.
#include "datasets/cifar10.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  const auto path = fuzz::write("test_batch.bin", data, size);
  return fuzz::ends_well([&] { load_cifar10(path.parent_path(), Split::test); });
}
