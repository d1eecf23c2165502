// RUNNEL_PROFILE=1 in the environment: the time of each kernel, as a table on stderr when the program ends. For the
// sources of the engine, the ops and the kernels only. CPU kernels are timed here; those on CUDA run asynchronously,
// and cuda/timing.cu times them.
#pragma once
#include <chrono>

#include "engine/device.h"

namespace runnel {

// Whether kernels are timed now: with RUNNEL_PROFILE, and in kernel_time() of engine/timing.h.
bool timing_kernels();

// Of a kernel that has run (engine/timing.cpp). call: its name, or with arguments, "scale(y, x, s, n)".
void add_kernel_time(Device device, const char* call, double seconds);

// Times a kernel from its construction to its destruction, if kernels are timed; does nothing on CUDA.
class KernelTimer {
 public:
  KernelTimer(Device device, const char* call);
  ~KernelTimer();
  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;

 private:
  const char* call_;  // null: not timed
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace runnel
