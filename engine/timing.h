// How long a device takes, by its own clock.
#pragma once
#include <cstdint>
#include <functional>

#include "engine/device.h"

namespace runnel {

// Seconds from the beginning to the end of what `work` makes the device do. On CUDA, where the beginning is when the
// GPU has done what it was given before, and the host's own time counts only if the GPU waits for it.
double device_seconds(Device device, const std::function<void()>& work);

struct KernelTime {
  int64_t calls = 0;
  double seconds = 0;  // sum over the calls: nothing that passes between them
};
// Of all kernels that `work` calls. Each is timed by itself, and no graph is replayed meanwhile, so `work` takes longer
// than otherwise.
KernelTime kernel_time(Device device, const std::function<void()>& work);

}  // namespace runnel
