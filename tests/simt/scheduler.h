// Shared by the emulator's files: running a grid, the seeded order of threads, failing, and memory that is poisoned for
// AddressSanitizer.
#pragma once
#include <cuda_runtime.h>

#if RUNNEL_WITH_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace simt {

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes;
  const void* kernel;
};
void run_grid(const Grid& grid, const Call& call);

// SIMT_SEED in the environment. 0: in order; 1: in reverse; even: at random; odd: random, and whole warps run ahead.
unsigned seed();
uint64_t next_random();

struct Symbol {  // function, file and line of an instruction, as well as this build knows them
  char text[1024];
  explicit Symbol(const void* address);
};

bool is_shared(const void* address);  // of the running block

// Prints the sentence, the kernel, block and thread if one is running, and the stack if a sanitizer knows it; aborts.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Fills uninitialised memory: signalling NaNs of float and bfloat16, NaNs of half. (A double is 6e306.)
void make_undefined(void* memory, size_t bytes);

#if RUNNEL_WITH_ADDRESS_SANITIZER  // the header's macros do nothing in files compiled without it, as scheduler.cpp
inline void forbid(const void* memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }
inline void permit(const void* memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
inline void forbid(const void*, size_t) {}
inline void permit(const void*, size_t) {}
#endif

// Prints what the address is, if it is device memory (runtime.cpp).
void describe_device_memory(const void* address);

}  // namespace simt
