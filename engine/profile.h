// RUNNEL_PROFILE=1 in the environment: the time of each CPU kernel, as a table on stderr when the program ends. For the
// sources of the engine, the ops and the kernels only. CUDA kernels run asynchronously and may be captured in a graph:
// NVIDIA's profilers time those.
#pragma once
#include <chrono>

#include "engine/device.h"

namespace runnel {

// Times a kernel from its construction to its destruction; does nothing on CUDA, and without RUNNEL_PROFILE.
class KernelTimer {
 public:
  KernelTimer(Device device, const char* call);  // call: the kernel's name and arguments, "scale(y, x, s, n)"
  ~KernelTimer();
  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;

 private:
  const char* call_;  // null: not timed
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace runnel
