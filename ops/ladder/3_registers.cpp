// Rung 3 of the CPU: Algorithm 1, four positions at a time. For each row of S, and as many of its columns as fit into
// the registers beside the sums there, S goes through the four updates while it is in registers:
//
//   for p = 0..3:   S[r] += a_p[r] b_p,   y_p += x_p[r] S[r]
//
// The rung before moves each number of S between cache and registers three times for each position, and y_i 32 times.
// Here S is moved twice for four positions, and y_i once.
// And since the rows of a head lie a row of all heads apart, where no hardware prefetcher looks, they are prefetched.
//
// Wastes: all cores but one. One sees it: `top` says 100%, whatever the number of cores.
// The matrix form of CUDA's rung 5 does not pay here: it takes twice the arithmetic to save moves that are cheap, since
// S stays in the first-level cache.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/ladder/kernels.h"

namespace runnel {
namespace {

constexpr int together = 4, vectors = 2;   // positions; vectors of columns: their sums are half of AVX2's registers
constexpr int ahead = 8, cache_line = 16;  // positions that are prefetched before they are needed; numbers

// `positions` positions, which are `step` numbers apart. With `sum_only`, S is moved on, and y and x are not touched.
template <int positions, bool sum_only>
RUNNEL_NOINLINE void walk(float* y, float* s, const float* x, const float* a, const float* b, int64_t step) {
  for (int p = 0; p < positions; ++p)
    for (int64_t at = (p + ahead) * step, end = at + ladder_width; at < end; at += cache_line) {
      __builtin_prefetch(a + at), __builtin_prefetch(b + at);
      if constexpr (!sum_only) __builtin_prefetch(x + at), __builtin_prefetch(y + at, 1);
    }
  for (int64_t column = 0; column < ladder_width; column += vectors * lanes) {
    Lanes added[positions][vectors], sums[positions][vectors] = {};
#pragma GCC unroll 4
    for (int p = 0; p < positions; ++p)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) added[p][v] = load(b + p * step + column + v * lanes);
    for (int r = 0; r < ladder_width; ++r) {
      Lanes row[vectors];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) row[v] = load(s + r * ladder_width + column + v * lanes);
#pragma GCC unroll 4
      for (int p = 0; p < positions; ++p)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) {
          row[v] += a[p * step + r] * added[p][v];
          if constexpr (!sum_only) sums[p][v] += x[p * step + r] * row[v];
        }
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) store(s + r * ladder_width + column + v * lanes, row[v]);
    }
    if constexpr (!sum_only)
#pragma GCC unroll 4
      for (int p = 0; p < positions; ++p)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) store(y + p * step + column + v * lanes, sums[p][v]);
  }
}

template <bool sum_only>
void walk_segment(float* y, float* s, const float* x, const float* a, const float* b, LadderSizes sizes, int64_t n,
                  int64_t begin, int64_t end) {
  const int64_t step = sizes.step();
  int64_t i = begin;
  const auto some = [&](auto walk_some, int64_t positions) {
    const int64_t at = sizes.at(n, i);
    walk_some(sum_only ? nullptr : y + at, s, sum_only ? nullptr : x + at, a + at, b + at, step);
    i += positions;
  };
  while (i + together <= end) some(walk<together, sum_only>, together);
  while (i < end) some(walk<1, sum_only>, 1);
}

}  // namespace

void cpu::ladder_segment(float* y, float* s, const float* x, const float* a, const float* b, LadderSizes sizes,
                         int64_t n, int64_t begin, int64_t end) {
  if (y)
    walk_segment<false>(y, s, x, a, b, sizes, n, begin, end);
  else
    walk_segment<true>(y, s, x, a, b, sizes, n, begin, end);
}

void cpu::ladder_registers(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  const Scratch state(LadderSizes::state);
  for (int64_t n = 0; n < sizes.sequences(); ++n) {
    clear(state.data(), LadderSizes::state);
    cpu::ladder_segment(y, state.data(), x, a, b, sizes, n, 0, sizes.length);
  }
}

}  // namespace runnel
