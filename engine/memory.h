// Memory of a device: allocation with counters of live and peak bytes, and copies.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/device.h"

namespace runnel {

// Uninitialised memory, aligned to 64 bytes. Throws Error if there is none left or no such device. Enables FTZ/DAZ
// (flush subnormals to zero) in the calling thread.
void* allocate(size_t bytes, Device device);
void release(void* memory, size_t bytes, Device device);

// Copies within and between devices. A copy to the host returns when the bytes are there; other copies are asynchronous
// but stream-ordered: kernels that are launched later see the result.
void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes);

struct MemoryUse {  // in bytes
  int64_t live;     // held by living tensors
  int64_t peak;     // largest `live` since the last reset_peak
  int64_t cached;   // kept for reuse: on the CPU, free ranges of the pool's chunks
};
MemoryUse memory_use(Device device);
void reset_peak(Device device);
// Gives memory that is cached back to the system: on the CPU, chunks without blocks.
void trim_memory(Device device);
// Allocations that would make `live` larger than this fail as if there were no more memory.
void limit_memory(Device device, int64_t bytes);

}  // namespace runnel
