// Dropout of a piece of a tensor, and the random numbers behind it.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "engine/random.h"
#include "ops/cpu/loops.h"

namespace runnel {
namespace {

// Philox works on 32-bit words that are multiplied to 64 bits, so they stand in 64-bit lanes, one Philox block to a
// lane.
constexpr int64_t word_lanes = lanes / 2;
using WordLanes = uint64_t __attribute__((vector_size(sizeof(Lanes))));

// The products of the lower halves.
RUNNEL_INLINE inline WordLanes multiply_words(WordLanes a, uint32_t b) {
  const WordLanes all = b - WordLanes{};
#if defined(__AVX512F__)
  return std::bit_cast<WordLanes>(_mm512_maskz_mul_epu32(0xff, std::bit_cast<__m512i>(a), std::bit_cast<__m512i>(all)));
#elif defined(__AVX2__)
  return std::bit_cast<WordLanes>(_mm256_mul_epu32(std::bit_cast<__m256i>(a), std::bit_cast<__m256i>(all)));
#elif defined(__SSE2__)
  return std::bit_cast<WordLanes>(_mm_mul_epu32(std::bit_cast<__m128i>(a), std::bit_cast<__m128i>(all)));
#else
  return (a & 0xffffffffu) * all;
#endif
}

// The two halves of each block side by side.
RUNNEL_INLINE inline void store_blocks(uint16_t* to, WordLanes low, WordLanes high) {
#if defined(__AVX512F__)  // whole vectors: a load waits for stores of its parts until they are in the cache
  const __m512i l = std::bit_cast<__m512i>(low), h = std::bit_cast<__m512i>(high);
  const __m512i blocks[2] = {_mm512_permutex2var_epi64(l, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), h),
                             _mm512_permutex2var_epi64(l, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), h)};
  std::memcpy(to, blocks, sizeof blocks);
#else
  for (int64_t j = 0; j < word_lanes; ++j) {
    const uint64_t block[2] = {low[j], high[j]};
    std::memcpy(to + 8 * j, block, sizeof block);
  }
#endif
}

// The 16-bit numbers of Philox blocks of a key (engine/random.h): eight for each, two per word, low half first. There
// are `count` blocks, a multiple of 16; index(i) are the indexes of the i-th to the (i + word_lanes - 1)-th.
template <class Index>
RUNNEL_INLINE inline void draw_numbers(uint16_t* numbers, int64_t count, Key key, Index index) {
  static_assert(std::endian::native == std::endian::little);
  const auto [key0, key1] = key.words();
  const uint32_t step = key.step ? static_cast<uint32_t>(*key.step) : 0;
  constexpr int64_t together = lanes == 16 ? 2 : 4;  // vectors: one alone would wait for each multiplication
  for (int64_t i = 0; i < count; i += together * word_lanes) {
    // The upper halves of c0 to c3 may hold anything.
    WordLanes c0[together], c1[together], c2[together], c3[together] = {};
#pragma GCC unroll 4
    for (int64_t n = 0; n < together; ++n) {
      c0[n] = index(i + n * word_lanes);
      c1[n] = c0[n] >> 32;
      c2[n] = step - WordLanes{};
    }
    uint32_t k0 = key0, k1 = key1;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
      for (int64_t n = 0; n < together; ++n) {
        const WordLanes a = multiply_words(c0[n], 0xD2511F53), b = multiply_words(c2[n], 0xCD9E8D57);
        c0[n] = (b >> 32) ^ c1[n] ^ k0;
        c1[n] = b;
        c2[n] = (a >> 32) ^ c3[n] ^ k1;
        c3[n] = a;
      }
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
#pragma GCC unroll 4
    for (int64_t n = 0; n < together; ++n) {
      const WordLanes low = (c0[n] & 0xffffffffu) | c1[n] << 32, high = (c2[n] & 0xffffffffu) | c3[n] << 32;
      store_blocks(numbers + 8 * (i + n * word_lanes), low, high);
    }
  }
}

// Dropout's factor of an element: 0 where its number is below the threshold.
struct DropoutFactors {
  uint32_t threshold;
  float kept;
  explicit DropoutFactors(float p) : threshold(static_cast<uint32_t>(p * 0x1p16f + 0.5f)), kept(1 / (1 - p)) {}

  RUNNEL_INLINE Lanes operator()(const uint16_t* numbers) const {
    HalfLanes x;
    std::memcpy(&x, numbers, sizeof x);
    return widened(x) >= threshold ? splat(kept) : Lanes{};
  }
};

// y[i] = dropout(x)[begin + i] for i < n: the elements [begin, begin + n) of a tensor, where x and y point to that
// piece; y may be x. Fast when begin is a multiple of 128. One thread: callers work on pieces that lie in its cache.
inline void apply_dropout(float* y, const float* x, int64_t begin, int64_t n, const Dropout& dropout) {
  if (dropout.p == 0) {
    if (y != x) std::memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  constexpr int64_t blocks = 16, chunk = 8 * blocks;
  const DropoutFactors factors(dropout.p);
  const int64_t end = begin + n;
  for (int64_t i = begin; i < end;) {
    alignas(64) uint16_t numbers[chunk + lanes];  // the last vector may begin anywhere in them
    draw_numbers(numbers, blocks, dropout.key, [first = i / chunk * blocks](int64_t b) RUNNEL_INLINE {
      WordLanes index{};
      for (int64_t j = 0; j < word_lanes; ++j) index[j] = static_cast<uint64_t>(j);
      return index + static_cast<uint64_t>(first + b);
    });
    const int64_t skipped = i % chunk, count = chunk - skipped < end - i ? chunk - skipped : end - i;
    for (int64_t j = 0; j < count; j += lanes)
      store(y + i - begin + j, load(x + i - begin + j, count - j) * factors(numbers + skipped + j), count - j);
    i += count;
  }
}

}  // namespace
}  // namespace runnel
