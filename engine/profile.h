// RUNNEL_PROFILE=1 in the environment: the time of each kernel, as a table on stderr when the program ends. For the
// sources of the engine, the ops and the kernels only.
#pragma once
#include <chrono>

#include "engine/device.h"

namespace runnel {

// Times a kernel from its construction to its destruction, and does nothing without RUNNEL_PROFILE. With it, waits for
// the device before and after.
class KernelTimer {
 public:
  KernelTimer(Device device, const char* call);  // call: the kernel's name and arguments, "scale(y, x, s, n)"
  ~KernelTimer();
  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;

 private:
  Device device_;
  const char* call_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace runnel
