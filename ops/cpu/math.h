// Shared by the CPU kernels: an exponential that vectorises, and dropout of a piece of a tensor.
//
// The library's exp is a call, and a loop with a call is not vectorised. fast_exp is a dozen operations without a
// branch: with n the integer nearest to x / ln 2 and r = x - n ln 2, e^x = 2^n e^r, where e^r is a polynomial of degree
// 6 (relative error 3e-9 for |r| <= ln 2 / 2), and 2^n is added to the exponent bits. The error is below 0.9 units in
// the last place where multiply-adds are fused, 1.2 where not; results below the smallest normal number are 0.
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

#include "engine/random.h"

namespace runnel {

[[gnu::always_inline]] inline float fast_exp(float x) {
  constexpr float lowest = -87.33654f, highest = 88.72283f;  // logarithms of the smallest normal and largest float
  constexpr float shift = 0x1.8p23f;  // numbers this large have no fraction: adding it rounds to an integer
  const float shifted = x * 1.44269504f + shift;
  const float n = shifted - shift;
  const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // ln 2 in two parts; n times the first is exact

  float p = 0x1.6a23d0p-10f;
  p = p * r + 0x1.123a20p-7f;
  p = p * r + 0x1.5558f2p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * r + 1;
  p = p * r + 1;

  // The low bits of `shifted` are n. Moved to the exponent, they push out all others.
  const float y = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
  const float positive = x < lowest ? 0 : y;
  return x <= highest ? positive : x + std::numeric_limits<float>::infinity();  // NaN stays NaN
}

// Throws unless 0 <= p < 1; every op with dropout calls it.
void check_dropout(const char* op, const Dropout& dropout);

// y[i] = dropout(x)[begin + i] for i < n: the elements [begin, begin + n) of a tensor, where x and y point to that
// piece; y may be x. Fast when begin is a multiple of 128. One thread: callers work on pieces that lie in its cache.
void apply_dropout(float* y, const float* x, int64_t begin, int64_t n, const Dropout& dropout);

}  // namespace runnel
