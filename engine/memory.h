// Memory of a device: allocation with counters of live and peak bytes, and copies.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/device.h"

namespace runnel {

// Uninitialised memory, aligned to 64 bytes. Throws Error if there is none left or no such device.
void* allocate(size_t bytes, Device device);
void release(void* memory, size_t bytes, Device device);

// Copies within and between devices. A copy to the host returns when the bytes are there; other copies are asynchronous
// but stream-ordered: kernels that are launched later see the result.
void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes);

// Bytes held by living tensors; what the pool keeps for reuse does not count.
struct MemoryUse {
  int64_t live;
  int64_t peak;  // largest `live` since the last reset_peak
};
MemoryUse memory_use(Device device);
void reset_peak(Device device);
// Bytes that can still be allocated without swapping: what the machine, or the GPU, has available, what the process may
// use of it (cgroup limits), and what the pool keeps for reuse.
int64_t free_memory(Device device);

}  // namespace runnel
