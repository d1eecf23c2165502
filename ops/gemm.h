// The one door to the library that multiplies matrices on the CPU (oneDNN).
#pragma once
#include <cstdint>

namespace runnel::cpu {

// c[m,n] = op(a) op(b) + beta c, row-major with the given leading dimensions. Inside a parallel region it runs on the
// calling thread alone, outside on all of them.
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

}  // namespace runnel::cpu
