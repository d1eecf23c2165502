// Where numbers live and who computes on them: memory with byte counters, copies, and the two macros by which
// one kernel signature becomes a CPU and a CUDA function. This is the only place that knows RUNNEL_WITH_CUDA.
#pragma once
#include <cstddef>
#include <cstdint>

namespace runnel {

enum class Device { cpu, cuda };
const char* name(Device device);

// Uninitialised memory, aligned to 64 bytes. Throws Error when there is none left, or no such device.
void* allocate(size_t bytes, Device device);
void release(void* memory, size_t bytes, Device device);

void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes);

// Bytes held by living tensors; what the pool keeps for reuse does not count.
struct MemoryUse {
  int64_t live;
  int64_t peak;  // largest `live` since the last reset_peak
};
MemoryUse memory_use(Device device);
void reset_peak(Device device);

// What the matrix products of models round their operands to; they always add up in float32. Set it before the first
// product. Throws Error if bf16 is asked for and this processor cannot multiply it at speed.
enum class Precision { f32, bf16 };
bool has_bf16();
void set_precision(Precision precision);
Precision precision();

}  // namespace runnel

// KERNEL(scale_forward(float* y, const float* x, float s, int64_t n)) declares runnel::cpu::scale_forward and
// runnel::cuda::scale_forward. DISPATCH(device, scale_forward(y, x, s, n)) calls the one that `device` names. Without
// CUDA the second is declared and never named, so nothing has to be stubbed.
#define KERNEL(...) \
  namespace cpu {   \
  void __VA_ARGS__; \
  }                 \
  namespace cuda {  \
  void __VA_ARGS__; \
  }

#if RUNNEL_WITH_CUDA
#define DISPATCH(device, ...) ((device) == ::runnel::Device::cpu ? cpu::__VA_ARGS__ : cuda::__VA_ARGS__)
#else
#define DISPATCH(device, ...) (static_cast<void>(device), cpu::__VA_ARGS__)
#endif

namespace runnel {

// y = a + b, the one kernel that the engine itself needs: a tensor used twice gets the sum of two gradients.
KERNEL(add(float* y, const float* a, const float* b, int64_t n))

}  // namespace runnel
