#include "engine/memory.h"

#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "engine/check.h"
#include "engine/cuda_backend.h"

namespace runnel {
namespace {

#if RUNNEL_WITH_ADDRESS_SANITIZER || RUNNEL_WITH_THREAD_SANITIZER
constexpr bool with_pool = false;  // every tensor its own allocation, so that a sanitizer sees its ends
#else
constexpr bool with_pool = true;
#endif
#if RUNNEL_WITH_ADDRESS_SANITIZER || RUNNEL_FRESH_IS_NAN
constexpr bool fresh_is_nan = true;  // fresh memory holds NaN, so that reading unwritten memory shows in results
#else
constexpr bool fresh_is_nan = false;
#endif
constexpr size_t alignment = 64;

// Tries again before it sleeps, since the pool seldom takes as long as that, only where it asks the system for memory.
std::unique_lock<std::mutex> locked(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::defer_lock);
  for (int i = 0; i < 100 && !lock.try_lock(); ++i) std::this_thread::yield();
  if (!lock) lock.lock();
  return lock;
}

// The CPU's larger blocks; CUDA has a pool of its own. They lie side by side in chunks, on huge pages where the system
// grants them: fewer page faults, fewer misses of the TLB. A block takes the smallest free range that holds it; what
// becomes free is joined with the free ranges beside it, so that blocks of other sizes fit, too (a sequence that
// grows). As much as was ever in use at once is kept, which spares the system from mapping and zeroing the same pages
// in every step of training; of what exceeds that and 64 MiB, chunks without blocks are given back.
class Pool {
 public:
  void* allocate(size_t bytes) {
    if (!with_pool) return std::aligned_alloc(alignment, bytes);
    const auto lock = locked(mutex_);
    auto smallest = by_size_.lower_bound({bytes, nullptr});
    if (smallest == by_size_.end()) {
      if (!add_chunk(bytes > chunk_size / 2 ? bytes : chunk_size)) release_chunks(0), add_chunk(bytes);
      smallest = by_size_.lower_bound({bytes, nullptr});
      if (smallest == by_size_.end()) return nullptr;
    }
    const auto [size, range] = *smallest;
    remove(range, size);
    if (size > bytes) add(range + bytes, size - bytes);
    max_used_ = std::max(max_used_, used_ += bytes);
    kept_ -= bytes;
    return range;
  }

  void release(void* memory, size_t bytes) {
    if (!with_pool) return std::free(memory);
    const auto lock = locked(mutex_);
    used_ -= bytes;
    kept_ += bytes;
    char* range = static_cast<char*>(memory);
    if (const auto after = by_place_.find(range + bytes); after != by_place_.end() && !chunks_.contains(range + bytes))
      bytes += remove(after->first, after->second);
    const auto before = by_place_.lower_bound(range);
    if (before != by_place_.begin() && !chunks_.contains(range))
      if (const auto [place, size] = *std::prev(before); place + size == range)
        range = place, bytes += remove(place, size);
    add(range, bytes);
    release_chunks(std::max(max_used_, size_t{64} << 20));
  }

  void trim() {
    const auto lock = locked(mutex_);
    release_chunks(0);
    max_used_ = used_;
  }

  size_t kept() const { return kept_; }

 private:
  // With addresses of 32 bits, as in WebAssembly, there is less memory.
  static constexpr size_t huge_page = size_t{2} << 20, chunk_size = (sizeof(void*) == 8 ? 16 : 2) * huge_page;

  void add(char* range, size_t bytes) {
    by_place_.emplace(range, bytes);
    by_size_.emplace(bytes, range);
  }
  size_t remove(char* range, size_t bytes) {
    by_place_.erase(range);
    by_size_.erase({bytes, range});
    return bytes;
  }

  bool add_chunk(size_t bytes) {
    bytes = (bytes + huge_page - 1) / huge_page * huge_page;
    char* const chunk = static_cast<char*>(std::aligned_alloc(huge_page, bytes));
    if (!chunk) return false;
#ifdef MADV_HUGEPAGE
    madvise(chunk, bytes, MADV_HUGEPAGE);
#endif
    chunks_.emplace(chunk, bytes);
    add(chunk, bytes);
    kept_ += bytes;
    return true;
  }
  void release_chunks(size_t bound) {  // those without blocks, while more is kept
    for (auto chunk = chunks_.begin(); kept_ > bound && chunk != chunks_.end();) {
      const auto [range, bytes] = *chunk;
      const bool is_free = by_size_.contains({bytes, range});
      chunk = is_free ? chunks_.erase(chunk) : std::next(chunk);
      if (is_free) kept_ -= remove(range, bytes), std::free(range);
    }
  }

  std::mutex mutex_;
  std::map<char*, size_t> chunks_, by_place_;   // bytes of each chunk, and of each free range
  std::set<std::pair<size_t, char*>> by_size_;  // free ranges
  size_t used_ = 0, max_used_ = 0;              // bytes
  std::atomic<size_t> kept_ = 0;                // bytes; read without the lock
};

Pool& pool() {
  static Pool* const the_pool = new Pool;  // never destroyed: tensors with static storage may be destroyed later
  return *the_pool;
}

// Threads that draw side by side allocate many small blocks, and would wait for the pool's lock. aligned_alloc takes
// several times as long as this. The word before a block is the address to free.
bool is_small(size_t bytes) { return with_pool && bytes <= size_t{32} << 10; }
void* allocate_small(size_t bytes) {
  void* own = ::operator new(bytes + alignment, std::nothrow);
  if (!own) pool().trim(), own = ::operator new(bytes + alignment, std::nothrow);
  if (!own) return nullptr;
  void** const block =
      static_cast<void**>(own) + (alignment - reinterpret_cast<uintptr_t>(own) % alignment) / sizeof own;
  block[-1] = own;
  return block;
}

struct Counter {
  std::atomic<int64_t> live{0}, peak{0}, limit{std::numeric_limits<int64_t>::max()};
  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    for (int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {
    }
  }
};
Counter counters[2];
Counter& counter(Device device) { return counters[device == Device::cuda]; }

size_t round_up(size_t bytes) { return bytes ? (bytes + alignment - 1) / alignment * alignment : alignment; }

void* allocate_on_cpu(size_t bytes) {
  void* const memory = is_small(bytes) ? allocate_small(bytes) : pool().allocate(bytes);
  constexpr uint32_t signalling_nan = 0x7fa07fa0;
  if (fresh_is_nan && memory)
    std::fill_n(static_cast<uint32_t*>(memory), bytes / sizeof signalling_nan, signalling_nan);
  return memory;
}

// Enables FTZ/DAZ (flush subnormals to zero) in this thread, its OpenMP workers and the threads it starts. Peaked heads
// underflow most features, and subnormals are slow on x86. Every thread that computes allocates first, so every program
// gets the same numbers.
void flush_subnormals() {
  thread_local bool done = false;
  if (std::exchange(done, true)) return;
  const auto flush = [] {
#if defined(__x86_64__)
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);          // results
    _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);  // operands
#endif
  };
  flush();
#pragma omp parallel  // in the workers that were started earlier; later ones inherit it
  flush();
}

}  // namespace

void* allocate(size_t bytes, Device device) {
  flush_subnormals();
  void* memory = nullptr;
  if (counter(device).live + static_cast<int64_t>(bytes) <= counter(device).limit) {
    if (device == Device::cpu)
      memory = allocate_on_cpu(round_up(bytes));
    else if constexpr (with_cuda)
      memory = cuda::allocate(bytes);
    else
      fail(why_unavailable(device));
  }
  check(memory, "out of memory on ", name(device), ": asked for ", bytes, " bytes with ", counter(device).live.load(),
        " bytes in use; make the batch, the length or the model smaller");
  counter(device).add(static_cast<int64_t>(bytes));
  return memory;
}

void release(void* memory, size_t bytes, Device device) {
  counter(device).add(-static_cast<int64_t>(bytes));
  if constexpr (with_cuda)
    if (device == Device::cuda) return cuda::release(memory);
  bytes = round_up(bytes);
  is_small(bytes) ? ::operator delete(static_cast<void**>(memory)[-1]) : pool().release(memory, bytes);
}

void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  if (bytes == 0) return;
  if constexpr (with_cuda)
    if (to_device == Device::cuda || from_device == Device::cuda)
      return cuda::copy(to, from, bytes, to_device == Device::cpu);
  std::memcpy(to, from, bytes);
}

MemoryUse memory_use(Device device) {
  MemoryUse use{counter(device).live, counter(device).peak, 0};
  if (device == Device::cpu)
    use.cached = static_cast<int64_t>(pool().kept());
  else if constexpr (with_cuda)
    use.cached = cuda::cached_memory();
  return use;
}

void reset_peak(Device device) { counter(device).peak = counter(device).live.load(); }
void limit_memory(Device device, int64_t bytes) { counter(device).limit = bytes; }

void trim_memory(Device device) {
  if constexpr (with_cuda)
    if (device == Device::cuda) return cuda::trim_memory();
  pool().trim();
}

}  // namespace runnel
