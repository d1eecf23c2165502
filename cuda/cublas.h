// Matrix products by cuBLAS, on the stream of all other kernels.
#pragma once
#include <cstdint>

namespace runnel::cuda {

// c[m,n] = op(a) op(b), row-major: a is [m,k], or [k,m] if it is transposed; b is [k,n], or [n,k] if it is. Operands
// are rounded to precision() (engine/device.h), sums are float32. Throws Error if a size does not fit into 31 bits. The
// first call makes the handle, so it must not be inside the capture of a graph.
void product(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
             bool transpose_b);

}  // namespace runnel::cuda
