#include "engine/device.h"

#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
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

namespace {

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

std::string why_unavailable(Device device) {
  if (device == Device::cpu) return "";
#if RUNNEL_WITH_CUDA
  return cuda::why_unavailable();
#else
  return "this build has no CUDA; configure with -DRUNNEL_CUDA=ON";
#endif
}

std::string model_name(Device device) {
#if RUNNEL_WITH_CUDA
  if (device == Device::cuda) return cuda::model_name();
#else
  static_cast<void>(device);
#endif
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "an unknown processor";
}

bool cuda_is_stand_in() {
#if RUNNEL_CUDA_IS_STAND_IN
  return true;
#else
  return false;
#endif
}

void* allocate(size_t bytes, Device device) {
#if RUNNEL_WITH_CUDA
  void* const memory = device == Device::cpu ? allocate_cpu(round_up(bytes)) : cuda::allocate(bytes);
#else
  check(device == Device::cpu, why_unavailable(device));
  void* const memory = allocate_cpu(round_up(bytes));
#endif
  check(memory, "out of memory on ", name(device), ": asked for ", bytes, " bytes with ", memory_use(device).live,
        " bytes in use; make the batch, the length or the model smaller");
  counter(device).add(static_cast<int64_t>(bytes));
  return memory;
}

void release(void* memory, size_t bytes, Device device) {
  counter(device).add(-static_cast<int64_t>(bytes));
#if RUNNEL_WITH_CUDA
  if (device == Device::cuda) return cuda::release(memory);
#endif
  release_cpu(memory, round_up(bytes));
}

void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  if (bytes == 0) return;
#if RUNNEL_WITH_CUDA
  if (to_device == Device::cuda || from_device == Device::cuda)
    return cuda::copy(to, from, bytes, to_device == Device::cpu);
#else
  static_cast<void>(to_device), static_cast<void>(from_device);
#endif
  std::memcpy(to, from, bytes);
}

void synchronize(Device device) {
#if RUNNEL_WITH_CUDA
  if (device == Device::cuda) cuda::synchronize();
#else
  static_cast<void>(device);
#endif
}

#if RUNNEL_WITH_CUDA
void Repeated::run() {
  if (device_ == Device::cpu || !std::exchange(warm_, true)) return work_();
  if (!graph_) graph_ = cuda::capture(work_);
  cuda::launch_graph(graph_);
}
Repeated::~Repeated() {
  if (graph_) cuda::destroy_graph(graph_);
}
#else
void Repeated::run() { work_(); }
Repeated::~Repeated() = default;
#endif

MemoryUse memory_use(Device device) { return {counter(device).live, counter(device).peak}; }

int64_t free_memory(Device device) {
#if RUNNEL_WITH_CUDA
  if (device == Device::cuda) return cuda::free_memory();
#else
  static_cast<void>(device);
#endif
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

void reset_peak(Device device) { counter(device).peak = counter(device).live.load(); }

bool has_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

void set_precision(Precision precision, Device device) {
  check(precision != Precision::bf16 || device == Device::cuda || has_bf16(),
        "this processor has no bfloat16 products (AVX512_BF16); compute in f32");
  the_precision = precision;
}

Precision precision() { return the_precision; }

void flush_denormals() {
#if defined(__x86_64__)
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);          // where they would come out
  _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);  // where they come in
#endif
}

void cpu::add(float* y, const float* a, const float* b, int64_t n) {
#pragma omp parallel for simd schedule(static) if (n >= 1 << 15)
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

}  // namespace runnel
