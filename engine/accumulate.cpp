#include "engine/accumulate.h"

#include <bit>

#include "engine/cuda_backend.h"
#include "engine/profile.h"

namespace runnel {
namespace {

[[maybe_unused]] constexpr int64_t parallel_from = 1 << 15;  // below, waking the threads costs more than they save

// To the nearest, ties to even; an infinity stays one, NaN stays NaN.
float rounded_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), rounded = bits + 0x7fff + (bits >> 16 & 1);
  return std::bit_cast<float>(((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded) & 0xffff0000);
}

}  // namespace

void accumulate(Device device, float* y, const float* a, const float* b, int64_t n) {
  const KernelTimer timer(device, "accumulate");
  if constexpr (with_cuda)
    if (device == Device::cuda) return cuda::accumulate(y, a, b, n);
#pragma omp parallel for simd schedule(static) if (n >= parallel_from)
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void accumulate_bf16(Device device, float* y, const float* a, const float* b, int64_t n) {
  const KernelTimer timer(device, "accumulate_bf16");
  if constexpr (with_cuda)
    if (device == Device::cuda) return cuda::accumulate_bf16(y, a, b, n);
#pragma omp parallel for simd schedule(static) if (n >= parallel_from)
  for (int64_t i = 0; i < n; ++i) y[i] = rounded_to_bf16(b ? a[i] + b[i] : a[i]);
}

}  // namespace runnel
