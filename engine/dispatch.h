// How one kernel signature becomes a CPU and a CUDA function, and how an op calls the one it needs. For the sources of
// the engine, the ops and the kernels only: no public header includes this file.
#pragma once
#include <cstdint>

#include "engine/device.h"

// KERNEL(scale(float* y, const float* x, float s, int64_t n)) declares runnel::cpu::scale and runnel::cuda::scale.
#define KERNEL(...) \
  namespace cpu {   \
  void __VA_ARGS__; \
  }                 \
  namespace cuda {  \
  void __VA_ARGS__; \
  }

// DISPATCH(device, scale(y, x, s, n)) calls the one that `device` names. Without CUDA the second is declared and never
// named, so nothing has to be stubbed.
#if RUNNEL_WITH_CUDA
#define DISPATCH(device, ...) ((device) == ::runnel::Device::cpu ? cpu::__VA_ARGS__ : cuda::__VA_ARGS__)
#else
#define DISPATCH(device, ...) (static_cast<void>(device), cpu::__VA_ARGS__)
#endif

namespace runnel {

#if RUNNEL_WITH_CUDA
constexpr bool with_cuda = true;
#else
constexpr bool with_cuda = false;
#endif

// y = a + b. The one kernel that the engine itself calls: a tensor used twice gets the sum of two gradients. Defined
// with the op of the same name, in ops/elementwise.cpp and cuda/elementwise.cu.
KERNEL(add(float* y, const float* a, const float* b, int64_t n))

}  // namespace runnel
