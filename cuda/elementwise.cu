// The elementwise functions and, with broadcasting, those of two numbers: the formulas of ops/kernels/formulas.h, in
// map (cuda/map.h) where all operands are contiguous.
#include "cuda/functions.h"
#include "cuda/map.h"
#include "ops/kernels/elementwise.h"

namespace runnel::cuda {
namespace {

#define BINARY(name, value, da, db)                                                                     \
  struct name##_formula {                                                                               \
    static __device__ float forward([[maybe_unused]] float a, [[maybe_unused]] float b) {               \
      [[maybe_unused]] constexpr float zero = 0;                                                        \
      return value;                                                                                     \
    }                                                                                                   \
    static __device__ float derivative([[maybe_unused]] float a, [[maybe_unused]] float b, bool by_b) { \
      [[maybe_unused]] constexpr float zero = 0, one = 1;                                               \
      return by_b ? (db) : (da);                                                                        \
    }                                                                                                   \
  };
#include "ops/kernels/formulas.h"
#undef BINARY

// Launch: over_fours(n). Owns: y[i]. Shared: none.
__global__ void scale_kernel(float* y, const float* x, float s, int64_t n) {
  map(
      y, n, [s](float xi) { return s * xi; }, Elements{x});
}

// Launch: over_fours(n). Owns: y[i]. Shared: none.
template <class Formula>
__global__ void function_forward_kernel(float* y, const float* x, int64_t n) {
  map(
      y, n, [](float xi) { return Formula::forward(xi); }, Elements{x});
}

// Launch: over_fours(n). Owns: dx[i]. Shared: none.
template <class Formula>
__global__ void function_backward_kernel(float* dx, const float* dy, const float* saved, int64_t n) {
  map(
      dx, n, [](float dyi, float s) { return dyi * Formula::backward(s); }, Elements{dy}, Elements{saved});
}

__device__ bool is_contiguous(const StridedLoop& s) { return s.rows == 1 && s.step_a == 1 && s.step_b == 1; }

// Launch: over_fours(n). Owns: y[i]. Shared: none.
template <class Formula>
__global__ void binary_forward_kernel(float* y, const float* a, const float* b, StridedLoop s) {
  const auto f = [](float ai, float bi) { return Formula::forward(ai, bi); };
  if (is_contiguous(s)) return map(y, s.n, f, Elements{a}, Elements{b});
  each_place(s, [&](int64_t i, int64_t at_a, int64_t at_b) { y[i] = f(a[at_a], b[at_b]); });
}

// Launch: over_fours(n). Owns: d[i]. Shared: none.
template <class Formula>
__global__ void binary_backward_kernel(float* d, const float* dy, const float* a, const float* b, StridedLoop s,
                                       bool by_b) {
  const auto f = [by_b](float g, float ai, float bi) { return g * Formula::derivative(ai, bi, by_b); };
  if (is_contiguous(s)) return map(d, s.n, f, Elements{dy}, Elements{a}, Elements{b});
  each_place(s, [&](int64_t i, int64_t at_a, int64_t at_b) { d[i] = f(dy[i], a[at_a], b[at_b]); });
}

}  // namespace

void scale(float* y, const float* x, float s, int64_t n) { launch("scale", scale_kernel, over_fours(n), y, x, s, n); }

void function_forward(float* y, const float* x, Function f, int64_t n) {
  switch (f) {
#define FUNCTION(name, value, saved, derivative) \
  case Function::name:                           \
    return launch("function_forward", function_forward_kernel<name##_formula>, over_fours(n), y, x, n);
#include "ops/kernels/formulas.h"
#undef FUNCTION
  }
}

void function_backward(float* dx, const float* dy, const float* saved, Function f, int64_t n) {
  switch (f) {
#define FUNCTION(name, value, saved_, derivative) \
  case Function::name:                            \
    return launch("function_backward", function_backward_kernel<name##_formula>, over_fours(n), dx, dy, saved, n);
#include "ops/kernels/formulas.h"
#undef FUNCTION
  }
}

void binary_forward(float* y, const float* a, const float* b, Binary f, StridedLoop s) {
  const Grid grid = over_fours(s.rows * s.n);
  switch (f) {
#define BINARY(name, value, da, db) \
  case Binary::name:                \
    return launch("binary_forward", binary_forward_kernel<name##_formula>, grid, y, a, b, s);
#include "ops/kernels/formulas.h"
#undef BINARY
  }
}

void binary_backward(float* d, const float* dy, const float* a, const float* b, Binary f, StridedLoop s, bool by_b) {
  const Grid grid = over_fours(s.rows * s.n);
  switch (f) {
#define BINARY(name, value, da, db) \
  case Binary::name:                \
    return launch("binary_backward", binary_backward_kernel<name##_formula>, grid, d, dy, a, b, s, by_b);
#include "ops/kernels/formulas.h"
#undef BINARY
  }
}

}  // namespace runnel::cuda
