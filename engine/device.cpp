#include "engine/device.h"

#include <fstream>

#include "engine/cuda_backend.h"

namespace runnel {

const char* name(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

std::string why_unavailable(Device device) {
  if (device == Device::cpu) return "";
  if constexpr (with_cuda) return cuda::why_unavailable();
  return "this build has no CUDA; configure with -DRUNNEL_CUDA=ON";
}

int cuda_devices() {
  if constexpr (with_cuda) return cuda::devices();
  return 0;
}

void choose_cuda_device([[maybe_unused]] int number) {
  if constexpr (with_cuda) cuda::choose_device(number);
}

std::string model_name(Device device) {
  if constexpr (with_cuda)
    if (device == Device::cuda) return cuda::model_name();
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    if (line.starts_with("CPU part")) return "ARM processor, part" + line.substr(line.find(':') + 1);
  }
  return "an unknown processor";
}

#ifndef RUNNEL_CUDA_IS_EMULATED
#define RUNNEL_CUDA_IS_EMULATED 0
#endif
bool cuda_is_emulated() { return RUNNEL_CUDA_IS_EMULATED; }

void synchronize(Device device) {
  if constexpr (with_cuda)
    if (device == Device::cuda) cuda::synchronize();
}

}  // namespace runnel
