// A few consecutive numbers that one thread takes at a time: four where size and addresses allow it, one where not. For
// kernels that take rows; those that look at one element at a time have map.h.
#pragma once
#include "cuda/launch.h"
#include "cuda/map.h"

namespace runnel::cuda {

template <int width>
struct alignas(width * sizeof(float)) Vec {
  float at[width];
};

// Whether rows of n numbers can be taken in fours from all these addresses.
template <class... Pointers>
bool in_fours(int64_t n, Pointers... pointers) {
  return n % 4 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

template <int width>
__device__ inline Vec<width> load(const float* x) {
  return *reinterpret_cast<const Vec<width>*>(x);
}

template <int width>
__device__ inline void store(float* y, const Vec<width>& x) {
  *reinterpret_cast<Vec<width>*>(y) = x;
}

// The same of bfloat16 numbers, which are rounded as they are stored.
template <int width>
struct alignas(width * sizeof(uint16_t)) Halves {
  uint16_t at[width];
};
template <int width>
__device__ inline Vec<width> load(const uint16_t* x) {
  const Halves<width> upper = *reinterpret_cast<const Halves<width>*>(x);
  Vec<width> values;
#pragma unroll
  for (int i = 0; i < width; ++i) values.at[i] = __uint_as_float(static_cast<uint32_t>(upper.at[i]) << 16);
  return values;
}
template <int width>
__device__ inline void store(uint16_t* y, const Vec<width>& x) {
  Halves<width> upper;
#pragma unroll
  for (int i = 0; i < width; ++i) upper.at[i] = to_bf16(x.at[i]);
  *reinterpret_cast<Halves<width>*>(y) = upper;
}

// dropout(x), where i, a multiple of width, is the number of x's first element in the whole tensor.
template <int width>
__device__ inline Vec<width> drop(Vec<width> x, int64_t i, const Mask& mask) {
  static_assert(width == 1 || width == 4);
  if (mask.threshold == 0) return x;
  const DropoutFactors factors{mask};
  if constexpr (width == 1) {
    x.at[0] *= factors[i];
  } else {
    const float4 four = factors.four(i);
    x.at[0] *= four.x;
    x.at[1] *= four.y;
    x.at[2] *= four.z;
    x.at[3] *= four.w;
  }
  return x;
}

}  // namespace runnel::cuda
