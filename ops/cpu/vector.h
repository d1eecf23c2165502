// Vectors for kernels: as many float32 numbers as a register of the instruction set holds. + - * / < and ?: work on
// them lane by lane (an extension of g++ and clang); here are the operations that they leave out, and elementary
// functions.
//
// Each file of kernels is compiled once for each instruction set (ops/kernels/dispatch.h). So everything in ops/cpu has
// internal linkage: of functions with external linkage the linker would keep one version for all instruction sets. And
// it is inlined by force: whether a compiler inlines a function into the loop that calls it otherwise depends on the
// processor that it tunes for, and a loop with a call is several times slower. Only loops whose sums fill the registers
// are functions of their own: inlined, they would share the registers with the code around them.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#define RUNNEL_INLINE __attribute__((always_inline))  // of lambdas, too, where it follows the arguments
#define RUNNEL_NOINLINE __attribute__((noinline))     // so that all registers are its own

namespace runnel {
namespace {

#if defined(__AVX512F__)
constexpr int64_t lanes = 16, registers = 32;
#elif defined(__AVX__)
constexpr int64_t lanes = 8, registers = 16;
#elif defined(__aarch64__)
constexpr int64_t lanes = 4, registers = 32;
#else
constexpr int64_t lanes = 4, registers = 16;
#endif
using Lanes = float __attribute__((vector_size(lanes * sizeof(float))));
using IntLanes =
    int32_t __attribute__((vector_size(sizeof(Lanes))));  // also the result of comparisons: 0, or -1 for true
using BitLanes = uint32_t __attribute__((vector_size(sizeof(Lanes))));

RUNNEL_INLINE inline Lanes load(const float* from) {
  Lanes x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
RUNNEL_INLINE inline void store(float* to, Lanes x) { std::memcpy(to, &x, sizeof x); }

// Neither reads the cache line first nor keeps it in the caches: for large results that are not needed soon. `to` is
// aligned to vectors. Before other threads read the numbers, the one that stores calls store_fence().
RUNNEL_INLINE inline void store_non_temporal(float* to, Lanes x) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, std::bit_cast<__m512>(x));
#elif defined(__AVX__)
  _mm256_stream_ps(to, std::bit_cast<__m256>(x));
#elif defined(__SSE2__)
  _mm_stream_ps(to, std::bit_cast<__m128>(x));
#else
  store(to, x);
#endif
}
inline void store_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// The first `count` lanes, or all if there are fewer; the others are those of `rest`.
RUNNEL_INLINE inline Lanes load(const float* from, int64_t count, Lanes rest = Lanes{}) {
  if (count >= lanes) return load(from);
  for (int64_t i = 0; i < count; ++i) rest[i] = from[i];
  return rest;
}
RUNNEL_INLINE inline void store(float* to, Lanes x, int64_t count) {
  if (count >= lanes) return store(to, x);
  for (int64_t i = 0; i < count; ++i) to[i] = x[i];
}

using HalfLanes = uint16_t __attribute__((vector_size(sizeof(Lanes) / 2)));
// 16-bit numbers without sign to 32 bits. Processors have an instruction for it, which g++ 12 does not use.
RUNNEL_INLINE inline BitLanes widened(HalfLanes x) {
#if defined(__AVX512F__)
  return std::bit_cast<BitLanes>(_mm512_maskz_cvtepu16_epi32(0xffff, std::bit_cast<__m256i>(x)));
#elif defined(__AVX2__)
  return std::bit_cast<BitLanes>(_mm256_cvtepu16_epi32(std::bit_cast<__m128i>(x)));
#else
  return __builtin_convertvector(x, BitLanes);
#endif
}

// bfloat16 numbers are the upper halves of floats. Stored ones are rounded to the nearest, ties to even; an infinity
// stays one, NaN stays NaN. With AVX512_BF16's instruction, subnormal numbers become 0.
RUNNEL_INLINE inline Lanes load(const uint16_t* from, int64_t count = lanes) {
  HalfLanes x{};
  std::memcpy(&x, from, static_cast<size_t>(count < lanes ? count : lanes) * sizeof(uint16_t));
  return std::bit_cast<Lanes>(widened(x) << 16);
}
RUNNEL_INLINE inline void store(uint16_t* to, Lanes x, int64_t count = lanes) {
#if defined(__AVX512BF16__)
  const HalfLanes upper = std::bit_cast<HalfLanes>(_mm512_cvtneps_pbh(x));
#else
  const BitLanes bits = std::bit_cast<BitLanes>(x), rounded = bits + 0x7fff + (bits >> 16 & 1);
  const BitLanes wide = ((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded) >> 16;
  const HalfLanes upper = __builtin_convertvector(wide, HalfLanes);
#endif
  std::memcpy(to, &upper, static_cast<size_t>(count < lanes ? count : lanes) * sizeof(uint16_t));
}

RUNNEL_INLINE inline Lanes splat(float x) { return x - Lanes{}; }  // -0 stays -0
RUNNEL_INLINE inline Lanes max(Lanes a, Lanes b) { return a > b ? a : b; }
RUNNEL_INLINE inline Lanes min(Lanes a, Lanes b) { return a < b ? a : b; }
RUNNEL_INLINE inline Lanes abs(Lanes x) { return std::bit_cast<Lanes>(std::bit_cast<BitLanes>(x) & 0x7fffffffu); }

RUNNEL_INLINE inline Lanes sqrt(Lanes x) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xffff, x);  // g++ 12 warns of _mm512_sqrt_ps, which begins with an undefined vector
#elif defined(__AVX__)
  return _mm256_sqrt_ps(x);
#elif defined(__SSE__)
  return _mm_sqrt_ps(x);
#elif defined(__aarch64__)
  return std::bit_cast<Lanes>(vsqrtq_f32(std::bit_cast<float32x4_t>(x)));
#else
  for (int64_t i = 0; i < lanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// Of all lanes, by halves: the same order with every instruction set that has as many lanes.
template <class Vector>
RUNNEL_INLINE inline auto lane_sum(Vector x) {
  constexpr size_t count = sizeof(Vector) / sizeof(x[0]);
  std::remove_cvref_t<decltype(x[0])> part[count];
  std::memcpy(part, &x, sizeof x);
  for (size_t half = count / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) part[i] += part[i + half];
  return part[0];
}
RUNNEL_INLINE inline float lane_max(Lanes x) {
  float part[lanes];
  std::memcpy(part, &x, sizeof x);
  for (int64_t half = lanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) part[i] = part[i] < part[i + half] ? part[i + half] : part[i];
  return part[0];
}

// e^x = 2^n e^r with n the integer nearest to x / ln 2 and r = x - n ln 2, where e^r = 1 + r + r^2 tail with a
// polynomial of degree 4 (relative error of e^r 3e-9 for |r| <= ln 2 / 2).
struct ExpParts {
  Lanes r, tail, power;  // power: 2^n, for numbers whose exponential is neither 0 nor infinite
};
RUNNEL_INLINE inline ExpParts exp_parts(Lanes x) {
  constexpr float shift = 0x1.8p23f;  // numbers this large have no fraction: adding it rounds to an integer
  const Lanes shifted = x * 1.44269504f + shift;
  const Lanes n = shifted - shift;
  const Lanes r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // ln 2 in two parts; n times the first is exact
  Lanes tail = r * 0x1.6a23d0p-10f + 0x1.123a20p-7f;
  tail = tail * r + 0x1.5558f2p-5f;
  tail = tail * r + 0x1.555492p-3f;
  tail = tail * r + 0x1.fffffcp-2f;
  // The low bits of `shifted` are n. Moved to the exponent, they push out all others.
  return {r, tail, std::bit_cast<Lanes>(std::bit_cast<BitLanes>(shifted) << 23)};
}

// The error is below 0.9 units in the last place where multiply-adds are fused, 1.2 where not; results below the
// smallest normal number are 0.
RUNNEL_INLINE inline Lanes exp(Lanes x) {
  constexpr float lowest = -87.33654f, highest = 88.72283f;  // logarithms of the smallest normal and largest float
  const auto [r, tail, power] = exp_parts(x);
  const Lanes p = (tail * r + 1.0f) * r + 1.0f;
  const Lanes y = std::bit_cast<Lanes>(std::bit_cast<BitLanes>(p) + std::bit_cast<BitLanes>(power));
  const Lanes positive = x < lowest ? Lanes{} : y;
  return x <= highest ? positive : x + std::numeric_limits<float>::infinity();  // NaN stays NaN
}

RUNNEL_INLINE inline Lanes sigmoid(Lanes x) { return 1 / (1 + exp(-x)); }

// e^x - 1 for x in [-87, 88], also where it is close to 0.
RUNNEL_INLINE inline Lanes expm1(Lanes x) {
  const auto [r, tail, power] = exp_parts(x);
  const Lanes scale = std::bit_cast<Lanes>(std::bit_cast<BitLanes>(power) + 0x3f800000u);
  return scale * (r + r * r * tail) + (scale - 1);
}

RUNNEL_INLINE inline Lanes tanh(Lanes x) {
  const Lanes inside = x > 10 ? splat(10) : (x < -10 ? splat(-10) : x);  // beyond, tanh is 1 or -1; NaN stays NaN
  const Lanes e = expm1(2 * inside);
  return e / (e + 2);
}

// The natural logarithm: x = 2^n (1 + f) with f in [sqrt(1/2) - 1, sqrt(2) - 1], and log(1 + f) = f + f^2 times a
// polynomial of degree 8 (relative error 4e-9). 0 and subnormal numbers give -infinity, negative ones NaN.
RUNNEL_INLINE inline Lanes log(Lanes x) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const BitLanes bits = std::bit_cast<BitLanes>(x);
  const IntLanes n = std::bit_cast<IntLanes>(bits - 0x3f3504f3u) >> 23;  // the bits of sqrt(1/2)
  const Lanes f = std::bit_cast<Lanes>(bits - (std::bit_cast<BitLanes>(n) << 23)) - 1;
  const Lanes exponent = __builtin_convertvector(n, Lanes);
  Lanes p = f * -0x1.383d96p-4f + 0x1.084e00p-3f;
  p = p * f - 0x1.0f375cp-3f;
  p = p * f + 0x1.22709cp-3f;
  p = p * f - 0x1.54274ap-3f;
  p = p * f + 0x1.99a402p-3f;
  p = p * f - 0x1.000428p-2f;
  p = p * f + 0x1.555550p-2f;
  p = p * f - 0x1.fffff8p-2f;
  const Lanes y = exponent * 0x1.62e4p-1f + (f + (f * f * p + exponent * 0x1.7f7d1cp-20f));
  const Lanes not_negative = x >= std::numeric_limits<float>::min() ? y : splat(-infinity);
  return x < 0 ? splat(std::numeric_limits<float>::quiet_NaN()) : x < infinity ? not_negative : x;
}

// log(1 + x) for x in [-0.5, 1e38], also where it is close to 0: computing 1 + x first would round x away.
RUNNEL_INLINE inline Lanes log1p(Lanes x) {
  const Lanes y = 1 + x;
  return log(y) + (x - (y - 1)) / y;
}

// Phi(x), the standard normal distribution function: for t = |x|, Phi(-t) = e^(-t^2 / 2) u P(u) with u = 1 / (1 + 0.35
// t) and a polynomial of degree 8 (relative error 3e-8 for t <= 14).
RUNNEL_INLINE inline Lanes normal_cdf(Lanes x) {
  const Lanes t = abs(x), u = 1 / (1 + 0.35f * t);
  Lanes p = u * -0x1.dd87c4p-6f + 0x1.26db2ap-3f;
  p = p * u - 0x1.05da80p-2f;
  p = p * u + 0x1.45fe52p-3f;
  p = p * u - 0x1.7aa84ep-6f;
  p = p * u + 0x1.b029dap-4f;
  p = p * u + 0x1.ead5b2p-4f;
  p = p * u + 0x1.1e6feap-3f;
  p = p * u + 0x1.1df1d4p-3f;
  const Lanes tail = exp(-0.5f * (x * x)) * (u * p);
  return x > 0 ? 1 - tail : tail;
}

// Half as many numbers of twice the size, for sums of many.
constexpr int64_t double_lanes = lanes / 2;
using DoubleLanes = double __attribute__((vector_size(sizeof(Lanes))));
RUNNEL_INLINE inline DoubleLanes load_double(const float* from) {
  float __attribute__((vector_size(sizeof(Lanes) / 2))) x;
  std::memcpy(&x, from, sizeof x);
  return __builtin_convertvector(x, DoubleLanes);
}
}  // namespace
}  // namespace runnel
