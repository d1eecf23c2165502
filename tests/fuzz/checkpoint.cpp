// Checkpoints: the safetensors reader, its metadata, and the model that they describe.
#include "models/checkpoint.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  const auto path = fuzz::write("x.safetensors", data, size);
  fuzz::ends_well([&] { verify_safetensors(path); });
  return fuzz::ends_well([&] { load_model<AutoregressiveTransformer>(read_checkpoint(path)); });
}
