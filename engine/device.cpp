#include "engine/device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/check.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RUNNEL_POOL 0  // every tensor its own allocation, so that a sanitizer sees its ends
#else
#define RUNNEL_POOL 1
#endif

namespace runnel {
namespace {

// Training asks for the same few sizes in every step, so a free list per exact size serves nearly all of it, and
// the operating system is spared from mapping and zeroing the same pages again and again.
struct Pool {
  std::mutex mutex;
  std::unordered_map<size_t, std::vector<void*>> free;
  MemoryUse use{0, 0};

  void* take(size_t bytes) {
    auto found = free.find(bytes);
    if (found == free.end() || found->second.empty()) return nullptr;
    void* memory = found->second.back();
    found->second.pop_back();
    return memory;
  }

  void trim() {
    for (auto& [bytes, list] : free)
      for (void* memory : list) std::free(memory);
    free.clear();
  }
};

Pool& pool() {
  static Pool* the_pool = new Pool;  // never destroyed: tensors with static storage may outlive any order of ours
  return *the_pool;
}

Precision the_precision = Precision::f32;

constexpr size_t alignment = 64;
size_t round_up(size_t bytes) { return bytes ? (bytes + alignment - 1) / alignment * alignment : alignment; }

constexpr size_t huge_page = size_t{2} << 20;

// Large blocks lie on huge pages where the system grants them: fewer page faults and fewer misses of the TLB.
void* allocate_from_system(size_t bytes) {
  if (bytes < 2 * huge_page) return std::aligned_alloc(alignment, bytes);
  void* memory = std::aligned_alloc(huge_page, (bytes + huge_page - 1) / huge_page * huge_page);
#ifdef MADV_HUGEPAGE
  if (memory) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace

const char* name(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }

void* allocate(size_t bytes, Device device) {
  check(device == Device::cpu, "this build has no CUDA; configure with -DRUNNEL_CUDA=ON");
  Pool& pool = runnel::pool();
  const std::lock_guard lock(pool.mutex);
  const size_t rounded = round_up(bytes);
  void* memory = pool.take(rounded);
  if (!memory) memory = allocate_from_system(rounded);
  if (!memory) {
    pool.trim();
    memory = allocate_from_system(rounded);
  }
  check(memory, "out of memory: asked for ", bytes, " bytes with ", pool.use.live,
        " bytes in use; make the batch, the length or the model smaller");
  pool.use.live += static_cast<int64_t>(bytes);
  if (pool.use.live > pool.use.peak) pool.use.peak = pool.use.live;
  return memory;
}

void release(void* memory, size_t bytes, Device) {
  Pool& pool = runnel::pool();
  const std::lock_guard lock(pool.mutex);
  pool.use.live -= static_cast<int64_t>(bytes);
  if (RUNNEL_POOL)
    pool.free[round_up(bytes)].push_back(memory);
  else
    std::free(memory);
}

void copy(void* to, Device, const void* from, Device, size_t bytes) {
  if (bytes) std::memcpy(to, from, bytes);
}

MemoryUse memory_use(Device) {
  const std::lock_guard lock(pool().mutex);
  return pool().use;
}

void reset_peak(Device) {
  const std::lock_guard lock(pool().mutex);
  pool().use.peak = pool().use.live;
}

bool has_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

void set_precision(Precision precision) {
  check(precision == Precision::f32 || has_bf16(),
        "this processor has no bfloat16 products (AVX512_BF16); compute in f32");
  the_precision = precision;
}

Precision precision() { return the_precision; }

void cpu::add(float* y, const float* a, const float* b, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n >= 1 << 15)
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

}  // namespace runnel
