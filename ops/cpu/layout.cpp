// Strided copies: transpose, slice, concat, broadcasting.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/shapes.h"

namespace runnel {

void cpu::strided_copy(float* y, const float* x, StridedLoop s) {
  parallel_rows(s.rows, s.n, [&](int64_t row) {
    const StridedLoop::Offsets at = s.offsets(row);
    float* const to = y + at.a;
    const float* const from = x + at.b;
    if (s.step_a == 1 && s.step_b == 1) return copy_numbers(to, from, s.n);
    for (int64_t j = 0; j < s.n; ++j) to[j * s.step_a] = from[j * s.step_b];
  });
}

}  // namespace runnel
