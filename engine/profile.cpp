#include "engine/profile.h"

namespace runnel {

using Clock = std::chrono::steady_clock;

KernelTimer::KernelTimer(Device device, const char* call)
    : call_(device == Device::cpu && timing_kernels() ? call : nullptr) {
  if (call_) begin_ = Clock::now();
}

KernelTimer::~KernelTimer() {
  if (call_) add_kernel_time(Device::cpu, call_, std::chrono::duration<double>(Clock::now() - begin_).count());
}

}  // namespace runnel
