// How one kernel signature becomes functions for the CPU's instruction sets and for CUDA, and how an op calls the one
// it needs. For ops and kernels only: no public header includes this file.
//
// A source file with CPU kernels (ops/cpu) is compiled once for the processors that the whole program is compiled for,
// and again for each instruction set of ops/numerics.h, each time with RUNNEL_CPU set to the namespace of
// its kernels. All other files are compiled once, without RUNNEL_CPU: there, DISPATCH chooses among the kernels.
#pragma once
#include <cstdint>

#include "engine/device.h"
#include "engine/profile.h"
#include "ops/numerics.h"

namespace runnel {

namespace cpu_baseline {}
namespace cpu_avx2 {}
namespace cpu_avx512 {}
namespace cpu_avx512_bf16 {}
namespace cpu_dotprod {}
#ifdef RUNNEL_CPU
namespace cpu = RUNNEL_CPU;  // kernels are defined in it, and call each other there
#endif

}  // namespace runnel

// CPU_KERNEL(f(float* y, int64_t n)) declares f in each of these namespaces, KERNEL(...) in runnel::cuda, too. These
// lines, in ops/kernels/, are the device contract: every kernel under one signature, written once per device. Outputs
// come first, then inputs, then sizes and options. A kernel overwrites its outputs and does not accumulate into them,
// unless it says so. It trusts its arguments: the ops in front of it have checked shapes, devices and ranges. Outputs
// that may be null say so, and are skipped then. n counts elements, rows is the product of the axes before the last.
#define CPU_KERNEL(...)       \
  namespace cpu_baseline {    \
  void __VA_ARGS__;           \
  }                           \
  namespace cpu_avx2 {        \
  void __VA_ARGS__;           \
  }                           \
  namespace cpu_avx512 {      \
  void __VA_ARGS__;           \
  }                           \
  namespace cpu_avx512_bf16 { \
  void __VA_ARGS__;           \
  }                           \
  namespace cpu_dotprod {     \
  void __VA_ARGS__;           \
  }
#define KERNEL(...)       \
  CPU_KERNEL(__VA_ARGS__) \
  namespace cuda {        \
  void __VA_ARGS__;       \
  }

// ON_CPU(f(y, n)) calls the kernel for the instruction set that this process uses; CPU_DISPATCH times it, too.
#if RUNNEL_WITH_VARIANTS && defined(__aarch64__)
#define ON_CPU(...)                                                                            \
  (::runnel::instruction_set() == ::runnel::InstructionSet::dotprod ? cpu_dotprod::__VA_ARGS__ \
                                                                    : cpu_baseline::__VA_ARGS__)
#elif RUNNEL_WITH_VARIANTS
#define ON_CPU(...)                                                                                    \
  (::runnel::instruction_set() >= ::runnel::InstructionSet::avx512_bf16 ? cpu_avx512_bf16::__VA_ARGS__ \
   : ::runnel::instruction_set() == ::runnel::InstructionSet::avx512    ? cpu_avx512::__VA_ARGS__      \
   : ::runnel::instruction_set() == ::runnel::InstructionSet::avx2      ? cpu_avx2::__VA_ARGS__        \
                                                                        : cpu_baseline::__VA_ARGS__)
#else
#define ON_CPU(...) (cpu_baseline::__VA_ARGS__)
#endif
#define CPU_DISPATCH(...) (::runnel::KernelTimer(::runnel::Device::cpu, #__VA_ARGS__), ON_CPU(__VA_ARGS__))

// DISPATCH(device, f(y, n)) calls the kernel of `device`. Without CUDA the second is declared and never named, so
// nothing has to be stubbed.
#if RUNNEL_WITH_CUDA
#define DISPATCH(device, ...)                     \
  (::runnel::KernelTimer((device), #__VA_ARGS__), \
   (device) == ::runnel::Device::cpu ? ON_CPU(__VA_ARGS__) : cuda::__VA_ARGS__)
#else
#define DISPATCH(device, ...) (::runnel::KernelTimer((device), #__VA_ARGS__), ON_CPU(__VA_ARGS__))
#endif
