// Rung 1 of the CPU: the formula, y_i = sum_{j<=i} (x_i . a_j) b_j, in plain loops.
//
// Wastes: the sum over j begins anew at every position, L (L + 1) / 2 dot products and as many scaled rows per head:
// time grows with L^2. And a dot product is a chain of 32 additions, each waiting for the one before.
// One sees it: twice the length takes four times as long.
#include "ops/ladder/kernels.h"

namespace runnel {

void cpu::ladder_definition(float* y, const float* x, const float* a, const float* b, LadderSizes s) {
  for (int64_t n = 0; n < s.sequences(); ++n)
    for (int64_t i = 0; i < s.length; ++i) {
      float* const y_i = y + s.at(n, i);
      const float* const x_i = x + s.at(n, i);
      for (int c = 0; c < ladder_width; ++c) y_i[c] = 0;
      for (int64_t j = 0; j <= i; ++j) {
        const float* const a_j = a + s.at(n, j);
        const float* const b_j = b + s.at(n, j);
        float weight = 0;
        for (int r = 0; r < ladder_width; ++r) weight += x_i[r] * a_j[r];
        for (int c = 0; c < ladder_width; ++c) y_i[c] += weight * b_j[c];
      }
    }
}

}  // namespace runnel
