// c = op(a) op(b) for two matrices, by oneDNN, on all threads.
#include "ops/cpu/gemm.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/linear.h"

namespace runnel {

void cpu::matmul(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
                 bool transpose_b) {
  if (k == 0) clear(c, m * n);
  if (m == 0 || n == 0 || k == 0) return;
  onednn::gemm(c, a, b, m, n, k, transpose_a, transpose_b);
}

}  // namespace runnel
