// Memory that kernels work in. Allocated before a parallel region: an exception, such as that there is no memory left,
// must not leave the region.
#pragma once
#include <algorithm>

#include "engine/memory.h"
#include "engine/threads.h"
#include "ops/cpu/vector.h"

namespace runnel {
namespace {

// n uninitialised floats, aligned to 64 bytes.
class Scratch {
 public:
  explicit Scratch(int64_t n)
      : bytes_(static_cast<size_t>(n) * sizeof(float)), data_(static_cast<float*>(allocate(bytes_, Device::cpu))) {}
  ~Scratch() { release(data_, bytes_, Device::cpu); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* data() const { return data_; }

 private:
  size_t bytes_;
  float* data_;
};

// As much for each thread of the parallel regions that follow, and of the one that this is made in.
class ThreadScratch {
 public:
  explicit ThreadScratch(int64_t n)
      : each_((n + 15) / 16 * 16), memory_(std::max(omp_get_max_threads(), omp_get_num_threads()) * each_) {}
  float* this_thread() const { return memory_.data() + omp_get_thread_num() * each_; }  // of the calling thread

 private:
  int64_t each_;
  Scratch memory_;
};

inline void clear(float* x, int64_t n) {
  if (n > 0) std::memset(x, 0, static_cast<size_t>(n) * sizeof(float));
}
inline void copy_numbers(float* to, const float* from, int64_t n) {
  if (n > 0) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

}  // namespace
}  // namespace runnel
