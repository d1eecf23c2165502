// y[i] = f(x[i], z[i], ...): the base of all elementwise kernels.
//
// Such a kernel is memory-bound, and the memory is kept busiest by threads that move 16 bytes at once. So a thread
// takes four neighbours as a float4 where all operands allow it, and the rest (a tail of up to three elements, or
// everything if an operand does not start at a multiple of 16 bytes) goes one by one.
//
// An operand is anything that has
//   float operator[](int64_t i)    element i
//   float4 four(int64_t i)         elements i to i + 3, for an i that 4 divides
//   bool has_fours()               whether four may be called: the same answer in all threads
#pragma once
#include "cuda/launch.h"
#include "ops/kernels/strided_loop.h"

namespace runnel::cuda {

// For kernels that call map.
inline Grid over_fours(int64_t n) { return over((n + 3) / 4); }

__device__ inline bool is_aligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(float4) == 0; }
__device__ inline float4 load_four(const float* p) { return *reinterpret_cast<const float4*>(p); }

struct Elements {  // x[i]
  const float* x;
  __device__ float operator[](int64_t i) const { return x[i]; }
  __device__ float4 four(int64_t i) const { return load_four(x + i); }
  __device__ bool has_fours() const { return is_aligned(x); }
};

struct RepeatedRow {  // b[i % n]: a row of n that stands beside every row of a matrix; all zeros if b is null
  const float* b;
  int64_t n;
  __device__ float operator[](int64_t i) const { return b ? b[i % n] : 0; }
  __device__ float4 four(int64_t i) const { return b ? load_four(b + i % n) : make_float4(0, 0, 0, 0); }
  __device__ bool has_fours() const { return n % 4 == 0 && is_aligned(b); }
};

struct DropoutFactors {  // dropout's factor of element i
  Mask mask;
  __device__ float operator[](int64_t i) const {
    const float4 factors = four(i - i % 4);
    return i % 4 < 2 ? (i % 2 ? factors.y : factors.x) : (i % 2 ? factors.w : factors.z);
  }
  // Half of one Philox block, which holds the 16-bit numbers of eight elements.
  __device__ float4 four(int64_t i) const {
    if (mask.threshold == 0) return make_float4(mask.kept, mask.kept, mask.kept, mask.kept);
    const Philox words = mask.key.block(static_cast<uint64_t>(i) / 8);
    const bool second_half = i % 8 != 0;
    const uint32_t low = second_half ? words[2] : words[0], high = second_half ? words[3] : words[1];
    return make_float4(factor(low & 0xffffu), factor(low >> 16), factor(high & 0xffffu), factor(high >> 16));
  }
  __device__ bool has_fours() const { return true; }

 private:
  __device__ float factor(uint32_t number) const { return number >= mask.threshold ? mask.kept : 0; }
};

template <class F, class... Fours>
__device__ float4 map_four(F f, Fours... x) {
  return make_float4(f(x.x...), f(x.y...), f(x.z...), f(x.w...));
}

// y may be one of the operands: each element is read by the thread that then writes it.
template <class F, class... Operands>
__device__ void map(float* y, int64_t n, F f, Operands... x) {
  const int64_t fours = (is_aligned(y) && ... && x.has_fours()) ? n / 4 : 0;
  for (int64_t i = first_element(); i < fours; i += element_step())
    reinterpret_cast<float4*>(y)[i] = map_four(f, x.four(4 * i)...);
  for (int64_t i = 4 * fours + first_element(); i < n; i += element_step()) y[i] = f(x[i]...);
}

// f(i, place in a, place in b) of all elements; launch: over_fours. A thread takes four neighbours of a row, so that
// the row's places are divided out once.
template <class F>
__device__ void each_place(const StridedLoop& s, F f) {
  const int together = s.n % 4 == 0 ? 4 : 1;
  for (int64_t i = first_element() * together; i < s.rows * s.n; i += element_step() * together) {
    const int64_t j = i % s.n;
    const StridedLoop::Offsets row = s.offsets(i / s.n);
    for (int k = 0; k < together; ++k) f(i + k, row.a + (j + k) * s.step_a, row.b + (j + k) * s.step_b);
  }
}

}  // namespace runnel::cuda
