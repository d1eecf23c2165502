// Rung 2 of the CPU: Algorithm 1. All that y_i needs of the past is S_i = S_{i-1} + a_i b_i^T, 32 x 32 numbers:
// y_i = x_i^T S_i. Time grows with L, and each line of S is a few vectors (ops/cpu/loops.h).
//
// The rung before computes x_i . a_j for all pairs: brackets set the other way, x_i^T (a_j b_j^T), the sum over j is
// one that the positions share.
//
// Wastes: S, 4 KB, is read twice and written once at every position, and y_i read and written 32 times, all for two
// multiply-adds per number of S. One sees it: the multiply-adds per second are an eighth of those of a matrix product.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/ladder/kernels.h"

namespace runnel {

void cpu::ladder_state(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  const Scratch state(LadderSizes::state);
  float* const s = state.data();
  for (int64_t n = 0; n < sizes.sequences(); ++n) {
    clear(s, LadderSizes::state);
    for (int64_t i = 0; i < sizes.length; ++i) {
      const int64_t at = sizes.at(n, i);
      for (int r = 0; r < ladder_width; ++r) add_scaled(s + r * ladder_width, a[at + r], b + at, ladder_width);
      clear(y + at, ladder_width);
      for (int r = 0; r < ladder_width; ++r) add_scaled(y + at, x[at + r], s + r * ladder_width, ladder_width);
    }
  }
}

}  // namespace runnel
