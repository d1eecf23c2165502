// Dropout: y_i = x_i / (1 - p) with probability 1 - p, else 0. The mask is not kept: the backward pass draws it again,
// since element i's 16 random bits are a function of the key and i alone (engine/random.h). The op is linear in x and
// diagonal, so its gradient is this kernel, too.
#include "ops/cpu/dropout.h"
#include "ops/kernels/layers.h"

namespace runnel {

void cpu::dropout(float* y, const float* x, int64_t n, Dropout dropout) {
  constexpr int64_t piece = 1 << 13;
  parallel_pieces(n, piece, n >= parallel_from,
                  [=](int64_t begin, int64_t count) { apply_dropout(y + begin, x + begin, begin, count, dropout); });
}

}  // namespace runnel
