// Matrix products by cuBLAS, on the stream of all other kernels.
#pragma once
#include <cstdint>

namespace runnel::cuda {

// Options of a product c[m,n] = op(a) op(b).
struct ProductOptions {
  float factor = 1;              // of op(a) op(b)
  const float* added = nullptr;  // [batch,m,n], c itself or another matrix: c = factor op(a) op(b) + added_factor added
  float added_factor = 1;
  int64_t batch = 1;            // of products, whose operands lie one after the other
  bool same_a = false;          // one left operand for all of them
  const float* bias = nullptr;  // [batch,n]: added to each row of c
  bool relu = false;            // after the bias
};

// c[m,n] = op(a) op(b), row-major: a is [m,k], or [k,m] if it is transposed; b is [k,n], or [n,k] if it is. Operands
// are rounded to precision() (ops/numerics.h), sums are float32. Returns false, and has done nothing, if cuBLAS has
// no kernel that does all that the options ask for with these sizes. Without bias and relu that is an error.
// Throws Error also if a size does not fit into 31 bits. The first call makes the handle, so it must not be inside the
// capture of a graph.
bool product(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
             bool transpose_b, const ProductOptions& options = {});

}  // namespace runnel::cuda
