#include "engine/profile.h"

namespace runnel {

KernelTimer::KernelTimer(Device device, const char* call)
    : call_(device == Device::cpu && timing_kernels() ? call : nullptr) {
  if (call_) begin_ = std::chrono::steady_clock::now();
}

KernelTimer::~KernelTimer() {
  if (!call_) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
  add_kernel_time(Device::cpu, call_, seconds.count());
}

}  // namespace runnel
