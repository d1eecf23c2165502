// cuBLAS thinks in columns: what lies in memory as a row-major [m,n] matrix is to it the [n,m] transposed. So it is
// asked for c^T = op(b)^T op(a)^T, with the operands swapped and everything else as it is.
//
// It gets a workspace of its own, of a fixed size: then it needs to allocate nothing, so a product can be part of a
// captured graph, and it always picks from the same algorithms, so two runs give the same bytes.
#include "cuda/cublas.h"

#include <cublas_v2.h>

#include <limits>

#include "cuda/launch.h"
#include "engine/numerics.h"

namespace runnel::cuda {
namespace {

constexpr size_t workspace_bytes = size_t{32} << 20;

void check_cublas(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, what, ": cuBLAS failed with status ", static_cast<int>(status));
}

// Made once and kept: when the program ends, the driver may be gone before it.
cublasHandle_t make_handle() {
  cublasHandle_t handle = nullptr;
  void* workspace = nullptr;
  check_cublas(cublasCreate(&handle), "cublasCreate");
  check_cuda(cudaMalloc(&workspace, workspace_bytes), "the workspace of cuBLAS");
  check_cublas(cublasSetStream(handle, stream()), "cublasSetStream");  // forgets the workspace, so it comes first
  check_cublas(cublasSetWorkspace(handle, workspace, workspace_bytes), "cublasSetWorkspace");
  return handle;
}

cublasComputeType_t compute_type() {
  switch (precision()) {
    case Precision::tf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case Precision::bf16:
      return CUBLAS_COMPUTE_32F_FAST_16BF;
    default:
      return CUBLAS_COMPUTE_32F;
  }
}

}  // namespace

void product(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
             bool transpose_b) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    check_cuda(cudaMemsetAsync(c, 0, static_cast<size_t>(m * n) * sizeof(float), stream()), "matrix product");
    return;
  }
  check(std::max({m, n, k}) <= std::numeric_limits<int>::max(), "matrix product: [", m, ",", k, "] times [", k, ",", n,
        "] has more rows or columns than cuBLAS can count");
  static const cublasHandle_t handle = make_handle();
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), inner = static_cast<int>(k);
  const float one = 1, zero = 0;
  check_cublas(
      cublasGemmEx(handle, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, columns,
                   rows, inner, &one, b, CUDA_R_32F, transpose_b ? inner : columns, a, CUDA_R_32F,
                   transpose_a ? rows : inner, &zero, c, CUDA_R_32F, columns, compute_type(), CUBLAS_GEMM_DEFAULT),
      "matrix product");
}

}  // namespace runnel::cuda
