// The functions of one number in ops/kernels/formulas.h: name_formula::forward(x), and ::backward(saved), the
// derivative.
#pragma once
#include "cuda/launch.h"

namespace runnel::cuda {
namespace {

__device__ inline float exp(float x) { return expf(x); }
__device__ inline float log(float x) { return logf(x); }
__device__ inline float log1p(float x) { return log1pf(x); }
__device__ inline float sqrt(float x) { return sqrtf(x); }
__device__ inline float abs(float x) { return fabsf(x); }
__device__ inline float tanh(float x) { return tanhf(x); }
__device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }
// Phi(x), the standard normal distribution function.
__device__ inline float normal_cdf(float x) { return 0.5f * erfcf(-0.70710678f * x); }

#define FUNCTION(name, value, saved, derivative)          \
  struct name##_formula {                                 \
    static __device__ float forward(float x) {            \
      [[maybe_unused]] constexpr float zero = 0, one = 1; \
      return value;                                       \
    }                                                     \
    static __device__ float backward(float saved) {       \
      [[maybe_unused]] constexpr float zero = 0, one = 1; \
      return derivative;                                  \
    }                                                     \
  };
#include "ops/kernels/formulas.h"
#undef FUNCTION

}  // namespace
}  // namespace runnel::cuda
