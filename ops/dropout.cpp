// Dropout: y_i = x_i / (1 - p) with probability 1 - p, else 0. The mask is not kept: the backward pass draws it again,
// since element i's 16 random bits are a function of the key and i alone (engine/random.h). The op is linear in x and
// diagonal, so it is its own gradient.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/check.h"
#include "ops/cpu/math.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

// A chunk is 16 Philox blocks of eight 16-bit numbers: as many blocks as a vector register has lanes.
constexpr int64_t blocks = 16, chunk = 8 * blocks;

// numbers[0 .. chunk) are the key's 16-bit numbers from first_block on: two per word, low half first.
void draw(uint16_t* numbers, uint64_t first_block, std::array<uint32_t, 2> key) {
  static_assert(std::endian::native == std::endian::little);
  uint32_t words[4 * blocks];
  for (int64_t i = 0; i < blocks; ++i) {
    const uint64_t block = first_block + static_cast<uint64_t>(i);
    const Philox p = philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key);
    words[4 * i] = p[0];
    words[4 * i + 1] = p[1];
    words[4 * i + 2] = p[2];
    words[4 * i + 3] = p[3];
  }
  std::memcpy(numbers, words, sizeof words);
}

}  // namespace

void check_dropout(const char* op, const Dropout& dropout) {
  check(dropout.p >= 0 && dropout.p < 1, op, ": the dropout probability ", dropout.p, " is not in [0, 1)");
}

void apply_dropout(float* y, const float* x, int64_t begin, int64_t n, const Dropout& dropout) {
  if (dropout.p == 0) {
    if (y != x) std::copy_n(x, n, y);
    return;
  }
  const uint32_t threshold = static_cast<uint32_t>(std::lround(dropout.p * 0x1p16f));
  const float kept = 1 / (1 - dropout.p);
  const int64_t end = begin + n;
  for (int64_t i = begin; i < end;) {
    uint16_t numbers[chunk];
    draw(numbers, static_cast<uint64_t>(i / chunk * blocks), dropout.key.words());
    const int64_t skipped = i % chunk, count = std::min(chunk - skipped, end - i);
// Multiply by 0 or 1 / (1 - p): GCC turns a select into a masked load that depends on the random bits (5 times slower
// out of the caches).
#pragma omp simd
    for (int64_t j = 0; j < count; ++j)
      y[i - begin + j] = x[i - begin + j] * (numbers[skipped + j] >= threshold ? kept : 0);
    i += count;
  }
}

void cpu::dropout(float* y, const float* x, int64_t n, Dropout dropout) {
  constexpr int64_t piece = 64 * chunk;
#pragma omp parallel for schedule(static) if (n >= 1 << 15)
  for (int64_t i = 0; i < n; i += piece) apply_dropout(y + i, x + i, i, std::min(piece, n - i), dropout);
}

Tensor dropout(const Tensor& x, Dropout dropout) {
  check_dropout("dropout", dropout);
  Tensor y(x.shape(), x.device());
  DISPATCH(x.device(), dropout(y.data(), x.data(), x.size(), dropout));
  return record("dropout", {x}, y, [dropout](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(dy.shape(), dy.device());
    DISPATCH(dy.device(), dropout(dx.data(), dy.data(), dy.size(), dropout));
    return {dx};
  });
}

}  // namespace runnel
