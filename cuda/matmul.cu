// c = op(a) op(b): cuBLAS.
#include "cuda/cublas.h"
#include "ops/kernels/linear.h"

namespace runnel::cuda {

void matmul(float* c, const float* a, const float* b, int64_t batch, int64_t m, int64_t n, int64_t k, bool transpose_a,
            bool transpose_b, bool same_a) {
  ProductOptions options;
  options.batch = batch;
  options.same_a = same_a;
  product(c, a, b, m, n, k, transpose_a, transpose_b, options);
}

}  // namespace runnel::cuda
