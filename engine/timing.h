// How long a device takes, by its own clock.
#pragma once
#include <cstdint>
#include <functional>

#include "engine/device.h"

namespace runnel {

// Device time of `work` in seconds; on CUDA that between two events on the stream.
double device_seconds(Device device, const std::function<void()>& work);

struct KernelTime {
  int64_t calls = 0;
  double seconds = 0;  // sum over the calls; gaps between them excluded
};
// Of all kernels that `work` calls. Each is timed by itself, and no graph is replayed meanwhile, so `work` takes longer
// than otherwise.
KernelTime kernel_time(Device device, const std::function<void()>& work);

}  // namespace runnel
