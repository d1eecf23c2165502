// c = op(a) op(b), by oneDNN: one product on all threads; several are shared out to them.
#include "ops/cpu/gemm.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/linear.h"

namespace runnel {

void cpu::matmul(float* c, const float* a, const float* b, int64_t batch, int64_t m, int64_t n, int64_t k,
                 bool transpose_a, bool transpose_b) {
  if (k == 0) clear(c, batch * m * n);
  if (m == 0 || n == 0 || k == 0) return;
  FirstError error;
  parallel_for(batch, batch * m * n * k >= parallel_from_products, [&](int64_t i) {
    error.guard([&] { onednn::gemm(c + i * m * n, a + i * m * k, b + i * k * n, m, n, k, transpose_a, transpose_b); });
  });
  error.rethrow();
}

}  // namespace runnel
