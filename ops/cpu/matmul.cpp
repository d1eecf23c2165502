// c = op(a) op(b), by oneDNN if the build has it: one product on all threads; several are shared out to them.
#include "ops/cpu/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/linear.h"
#if RUNNEL_WITH_ONEDNN
#include "ops/cpu/gemm.h"
#else
#include "ops/cpu/panels.h"
#endif

namespace runnel {
namespace {

#if RUNNEL_WITH_ONEDNN
using onednn::gemm;
#else
// By panels.h: b is packed, and threads share the rows of c. A transposed a is copied first.
void gemm(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
          bool transpose_b) {
  const Scratch rows(transpose_a ? m * k : 0);
  if (transpose_a)
    parallel_for(m, m * k >= parallel_from, [&](int64_t i) {
      for (int64_t j = 0; j < k; ++j) rows.data()[i * k + j] = a[j * m + i];
    });
  const PanelMatrix packed(b, k, n, transpose_b);
  const float* const left = transpose_a ? rows.data() : a;
  parallel_pieces(m, 4 * max_block_rows, m * n * k >= parallel_from_products, [&](int64_t first, int64_t count) {
    packed.multiply(c + first * n, {left + first * k, count * k}, count, false);
  });
}
#endif

}  // namespace

void cpu::matmul(float* c, const float* a, const float* b, int64_t batch, int64_t m, int64_t n, int64_t k,
                 bool transpose_a, bool transpose_b, bool same_a) {
  if (k == 0) clear(c, batch * m * n);
  if (m == 0 || n == 0 || k == 0) return;
  FirstError error;
  parallel_for(batch, batch * m * n * k >= parallel_from_products, [&](int64_t i) {
    error.guard(
        [&] { gemm(c + i * m * n, a + (same_a ? 0 : i * m * k), b + i * k * n, m, n, k, transpose_a, transpose_b); });
  });
  error.rethrow();
}

}  // namespace runnel
