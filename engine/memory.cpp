#include "engine/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/check.h"
#include "engine/cuda_backend.h"
#include "engine/dispatch.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RUNNEL_POOL 0  // every tensor its own allocation, so that a sanitizer sees its ends
#else
#define RUNNEL_POOL 1
#endif

namespace runnel {
namespace {

// Training asks for the same few sizes in every step, so a free list per exact size serves nearly all of it, and
// the operating system is spared from mapping and zeroing the same pages again and again. CUDA has a pool of its own.
struct Pool {
  std::mutex mutex;
  std::unordered_map<size_t, std::vector<void*>> free;

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

struct Counter {
  std::atomic<int64_t> live{0}, peak{0};
  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    for (int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {
    }
  }
};
Counter counters[2];
Counter& counter(Device device) { return counters[device == Device::cuda]; }

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

void* allocate_cpu(size_t bytes) {
  Pool& pool = runnel::pool();
  const std::lock_guard lock(pool.mutex);
  void* memory = pool.take(bytes);
  if (!memory) memory = allocate_from_system(bytes);
  if (!memory) {
    pool.trim();
    memory = allocate_from_system(bytes);
  }
  return memory;
}

void release_cpu(void* memory, size_t bytes) {
  if (!RUNNEL_POOL) return std::free(memory);
  Pool& pool = runnel::pool();
  const std::lock_guard lock(pool.mutex);
  pool.free[bytes].push_back(memory);
}

}  // namespace

void* allocate(size_t bytes, Device device) {
  void* memory = nullptr;
  if (device == Device::cpu)
    memory = allocate_cpu(round_up(bytes));
  else if constexpr (with_cuda)
    memory = cuda::allocate(bytes);
  else
    fail(why_unavailable(device));
  check(memory, "out of memory on ", name(device), ": asked for ", bytes, " bytes with ", memory_use(device).live,
        " bytes in use; make the batch, the length or the model smaller");
  counter(device).add(static_cast<int64_t>(bytes));
  return memory;
}

void release(void* memory, size_t bytes, Device device) {
  counter(device).add(-static_cast<int64_t>(bytes));
  if constexpr (with_cuda)
    if (device == Device::cuda) return cuda::release(memory);
  release_cpu(memory, round_up(bytes));
}

void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  if (bytes == 0) return;
  if constexpr (with_cuda)
    if (to_device == Device::cuda || from_device == Device::cuda)
      return cuda::copy(to, from, bytes, to_device == Device::cpu);
  std::memcpy(to, from, bytes);
}

MemoryUse memory_use(Device device) { return {counter(device).live, counter(device).peak}; }

void reset_peak(Device device) { counter(device).peak = counter(device).live.load(); }

int64_t free_memory(Device device) {
  if constexpr (with_cuda)
    if (device == Device::cuda) return cuda::free_memory();
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace runnel
