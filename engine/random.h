// Random numbers without a state: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011) turns a 64-bit key and a 128-bit counter into 128 random bits. Draw number i of a key is the same
// wherever and whenever it is computed, so CPU and GPU agree, threads need no order, a backward pass draws its
// dropout mask again instead of keeping it, and a resumed run needs to remember nothing but its seed and step.
// What CUDA kernels call is constexpr: so nvcc compiles it for both sides without being told.
#pragma once
#include <array>
#include <cstdint>

namespace runnel {

using Philox = std::array<uint32_t, 4>;

// The words are kept in 64 bits, of which the upper half may hold anything: so a loop over counters vectorises with
// nothing but multiplications, shifts and bit operations.
constexpr Philox philox(Philox counter, std::array<uint32_t, 2> key) {
  uint64_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53 * (c0 & 0xffffffff);
    const uint64_t b = 0xCD9E8D57 * (c2 & 0xffffffff);
    c0 = (b >> 32) ^ c1 ^ k0;
    c1 = b;
    c2 = (a >> 32) ^ c3 ^ k1;
    c3 = a;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {static_cast<uint32_t>(c0), static_cast<uint32_t>(c1), static_cast<uint32_t>(c2), static_cast<uint32_t>(c3)};
}

// A name for a sequence of random numbers. Keys form a tree: key.fold(layer).fold(0) is a fresh sequence, independent
// of its parents and siblings.
struct Key {
  uint64_t value = 0;
  // Null, or the number of a training step, in the memory of the device that draws; each step has a fresh sequence.
  // Since it is read where it is used, a captured graph (engine/replay.h) draws other numbers in each step.
  const int32_t* step = nullptr;

  constexpr std::array<uint32_t, 2> words() const {
    return {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
  }

  constexpr Key fold(uint64_t n) const {
    const Philox p = philox({static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, 1}, words());
    return {p[0] | uint64_t{p[1]} << 32, step};
  }

  // Words 4 i to 4 i + 3 of the random bits.
  constexpr Philox block(uint64_t i) const {
    const uint32_t at = step ? static_cast<uint32_t>(*step) : 0;
    return philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), at, 0}, words());
  }

  // The i-th 32 random bits.
  constexpr uint32_t bits(uint64_t i) const { return block(i / 4)[i % 4]; }

  // The i-th uniform number, strictly between 0 and 1, so that its logarithm exists.
  constexpr float uniform(uint64_t i) const { return (static_cast<float>(bits(i) >> 9) + 0.5f) * 0x1p-23f; }

  // The i-th integer in [0, n). The bias is below n / 2^32.
  constexpr uint32_t below(uint64_t i, uint32_t n) const { return static_cast<uint32_t>(uint64_t{bits(i)} * n >> 32); }

  // The i-th standard normal number (Box and Muller).
  float normal(uint64_t i) const;
};

// Zeroes each element with probability p and divides the others by 1 - p. p = 0 leaves everything as it is.
struct Dropout {
  float p = 0;
  Key key;
};

}  // namespace runnel
