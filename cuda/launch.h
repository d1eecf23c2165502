// Used by every kernel: a checked launch, shared memory in named arrays, reductions over a warp and a block, the
// dropout mask, and the few instructions that need inline PTX. C++17, for nvcc.
//
// The same sources run without a GPU: tests/simt compiles them with g++ and runs every CUDA thread as a fibre.
// Therefore kernels take shared memory from Shared only, and inline PTX stands in this file only.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/check.h"
#include "engine/random.h"

namespace runnel::cuda {

// --- host ------------------------------------------------------------------------------------------------------------

cudaStream_t stream();      // on which everything is put; throws Error if there is no device
int64_t multiprocessors();  // of the device in use
size_t shared_memory();     // largest number of bytes per block

// While it lives, stream() is another one, whose work waits for the first stream only by events.
class OnStream {
 public:
  explicit OnStream(cudaStream_t other) : before_(current_) { current_ = other; }
  ~OnStream() { current_ = before_; }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;
  static cudaStream_t current() { return current_; }  // null: there is none

 private:
  static inline cudaStream_t current_ = nullptr;
  cudaStream_t before_;
};

// Throws Error "<what>: <CUDA's description>" unless status is success.
void check_cuda(cudaError_t status, const char* what);

// Times the work that is put on the stream while it lives, under this name (a string literal): cuda/timing.cu.
cudaEvent_t begin_timing();  // null: not timed
void end_timing(const char* name, cudaEvent_t begin);
void read_timings();  // of finished work: after a wait for the stream

struct Grid {
  dim3 blocks, threads;  // threads per block: a multiple of 32
  size_t shared = 0;     // dynamic shared memory in bytes, from SharedBytes
};

// A grid-stride loop over n elements (first_element, element_step): a thread per element, up to 32 blocks per
// multiprocessor.
inline Grid over(int64_t n, int threads = 256) {
  const int64_t most = 32 * multiprocessors(), wanted = (n + threads - 1) / threads;
  return {dim3(static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, most))), dim3(static_cast<unsigned>(threads))};
}

// launch("relu_forward", relu_forward_kernel, over(n), y, x, n). Kernels live in unnamed namespaces and take parameters
// by value. Throws Error with the name if the launch fails.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, Arguments&&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  if (grid.shared > 48 * 1024)
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(grid.shared)),
               name);
#ifndef __CUDACC__
  simt::launched().insert(name);
#endif
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared;
  config.stream = stream();
  const cudaEvent_t begin = begin_timing();
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
  end_timing(name, begin);
}

// Bytes of shared memory for the arrays that a kernel takes, added in the same order.
class SharedBytes {
 public:
  template <class T>
  SharedBytes& add(int64_t n) {
    used_ = (used_ + 15) / 16 * 16 + static_cast<size_t>(n) * sizeof(T);
    return *this;
  }
  size_t bytes() const { return used_; }

 private:
  size_t used_ = 0;
};

// --- device ----------------------------------------------------------------------------------------------------------

// Allocates arrays one after another in the block's shared memory, each aligned to 16 bytes. All threads take the same
// arrays in the same order.
class Shared {
 public:
  template <class T>
  __device__ T* take(unsigned n) {
#ifdef __CUDACC__
    extern __shared__ __align__(16) unsigned char bytes[];
    used_ = (used_ + 15u) & ~15u;
    T* array = reinterpret_cast<T*>(bytes + used_);
    used_ += n * static_cast<unsigned>(sizeof(T));
    return array;
#else
    return static_cast<T*>(simt::shared_take(n * sizeof(T), 16));
#endif
  }

 private:
  [[maybe_unused]] unsigned used_ = 0;
};

__device__ inline int64_t first_element() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t element_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

constexpr unsigned all_lanes = 0xffffffffu;

// All lanes get the sum, added in a fixed order.
template <class T>
__device__ inline T warp_sum(T x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(all_lanes, x, distance);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, distance));
  return x;
}

// All threads of the block get the sum. scratch: 32 numbers of shared memory, reusable right after.
template <class T>
__device__ inline T block_sum(T x, T* scratch) {
  x = warp_sum(x);
  __syncthreads();  // others may still read scratch from the previous sum
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : T(0));
}

// Parameters of each element's dropout factor, 0 or 1 / (1 - p): see `dropout` in ops/kernels/layers.h.
struct Mask {
  Key key;
  uint32_t threshold;
  float kept;
  explicit Mask(const Dropout& dropout)
      : key(dropout.key), threshold(static_cast<uint32_t>(dropout.p * 65536.0f + 0.5f)), kept(1 / (1 - dropout.p)) {}
};

// --- instructions ----------------------------------------------------------------------------------------------------

// Rounds to TF32 (10 bits of mantissa), the tensor cores' operand format.
__device__ inline uint32_t to_tf32(float x) {
#ifdef __CUDACC__
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#else
  return (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
#endif
}

// Rounds to bfloat16, the upper half of a float: to the nearest, ties to even.
__device__ inline uint16_t to_bf16(float x) {
#ifdef __CUDACC__
  uint16_t upper;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(upper) : "f"(x));
  return upper;
#else
  const uint32_t bits = __float_as_uint(x);
  return static_cast<uint16_t>(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

// d[16,8] += a[16,8] b[8,8] by one warp on the tensor cores. With g = lane / 4 and t = lane % 4, a lane holds
//   a: (g,t) (g+8,t) (g,t+4) (g+8,t+4)    b: (t,g) (t+4,g)    d: (g,2t) (g,2t+1) (g+8,2t) (g+8,2t+1)
__device__ inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  simt::mma_m16n8k8_tf32(d, a, b);
#endif
}

// Reads an operand a of mma_tf32 from shared memory: lane 4 g + t gets number t of the rows that lanes g, g + 8, g + 16
// and g + 24 name. A row is four numbers, at a multiple of 16 bytes.
__device__ inline void load_matrices(uint32_t (&x)[4], const float* row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))));
#else
  simt::ldmatrix_x4(x, row);
#endif
}

// Starts an asynchronous copy of 16 bytes from global to shared memory; readable after commit, wait and a barrier.
__device__ inline void copy16_async(void* shared, const void* global) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(global)
      : "memory");
#else
  simt::copy_async(shared, global, 16);
#endif
}
__device__ inline void copy_async_commit() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  simt::copy_async_commit();
#endif
}
// Waits until at most `pending` of this thread's committed groups are in flight.
template <int pending>
__device__ inline void copy_async_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#else
  simt::copy_async_wait(pending);
#endif
}

}  // namespace runnel::cuda
