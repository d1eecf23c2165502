// cuBLAS in plain loops, so that the sanitizers see every access to an operand; a tuned library would hide them.
// Matrices are column-major, c[m,n] = alpha op(a)[m,k] op(b)[k,n] + beta c. Rows of op(a) are the inner loop: its
// columns are packed one after another, as the compute type rounds them, and added up in the order of k; with an odd
// seed in two halves, since cuBLAS may split k, too. A workspace holds NaN afterwards.
#include <cublas_v2.h>

#include <algorithm>

#include "runtime.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  void* workspace = nullptr;  // since the stream was set: that forgets it
  size_t workspace_bytes = 0;
};

namespace {

enum class Rounding { none, tf32, bf16 };

struct Operand {
  const void* data;
  cudaDataType type;
  bool transposed;
  int leading;       // elements from one column to the next
  long long stride;  // from one matrix of the batch to the next
};
struct Product {
  int m, n, k, batch;
  float alpha, beta;
  Operand a, b, c;
  Rounding rounding;
};

uint32_t bf16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::isnan(x) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
}

float rounded(float x, Rounding rounding) {
  if (rounding == Rounding::none || !std::isfinite(x)) return x;
  if (rounding == Rounding::bf16) return std::bit_cast<float>(bf16_bits(x) << 16);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000u) & 0xffffe000u);  // ties away from zero
}

float load(const Operand& x, long long i) {
  if (x.type == CUDA_R_32F) return static_cast<const float*>(x.data)[i];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(x.data)[i]} << 16);
}

void store(const Operand& x, long long i, float value) {
  if (x.type == CUDA_R_32F)
    static_cast<float*>(const_cast<void*>(x.data))[i] = value;
  else
    static_cast<uint16_t*>(const_cast<void*>(x.data))[i] = static_cast<uint16_t>(bf16_bits(value));
}

// Element (row, column) of op(x) in matrix z of the batch.
long long index(const Operand& x, int z, int row, int column) {
  if (x.transposed) std::swap(row, column);
  return z * x.stride + row + static_cast<long long>(column) * x.leading;
}

void run(const Product& p) {
  const size_t m = static_cast<size_t>(p.m);
  std::vector<float> a(m * static_cast<size_t>(p.k)), sums(m), first_half(m);
  const int half = simt::seed() % 2 == 1 ? p.k / 2 : 0;
  for (int z = 0; z < p.batch; ++z) {
    for (int l = 0; l < p.k; ++l)
      for (int i = 0; i < p.m; ++i)
        a[static_cast<size_t>(l) * m + static_cast<size_t>(i)] = rounded(load(p.a, index(p.a, z, i, l)), p.rounding);
    for (int j = 0; j < p.n; ++j) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      std::fill(first_half.begin(), first_half.end(), 0.0f);
      for (int l = 0; l < p.k; ++l) {
        if (l == half) std::swap(sums, first_half);
        const float factor = rounded(load(p.b, index(p.b, z, l, j)), p.rounding);
        const float* column = a.data() + static_cast<size_t>(l) * m;
        for (size_t i = 0; i < m; ++i) sums[i] += column[i] * factor;
      }
      for (int i = 0; i < p.m; ++i) {
        const long long at = index(p.c, z, i, j);
        const float before = p.beta == 0 ? 0 : p.beta * load(p.c, at);  // with beta = 0, c may hold NaN
        store(p.c, at, p.alpha * (first_half[static_cast<size_t>(i)] + sums[static_cast<size_t>(i)]) + before);
      }
    }
  }
}

bool known(cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_16BF; }

cublasStatus_t enqueue(cublasHandle_t handle, const Product& p) {
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0 || p.a.leading < std::max(1, p.a.transposed ? p.k : p.m) ||
      p.b.leading < std::max(1, p.b.transposed ? p.n : p.k) || p.c.leading < std::max(1, p.m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!known(p.a.type) || !known(p.b.type) || !known(p.c.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.m == 0 || p.n == 0 || p.batch == 0) return CUBLAS_STATUS_SUCCESS;
  char* const workspace = static_cast<char*>(handle->workspace);
  const size_t bytes = handle->workspace_bytes;
  simt::require_device_memory({p.a.data, p.b.data, p.c.data, workspace}, "a matrix product");
  cudaStreamCaptureStatus capture{};
  cudaStreamIsCapturing(handle->stream, &capture);
  if (capture != cudaStreamCaptureStatusNone && !workspace)
    simt::fail("a matrix product is captured, but cuBLAS has no workspace: cublasSetStream forgets it");
  simt::launched().insert("matmul");
  simt::enqueue(handle->stream, [p, workspace, bytes] {
    const size_t end = std::min<size_t>(bytes, 4096);  // its two ends will do
    if (workspace) {
      simt::make_undefined(workspace, end);
      simt::make_undefined(workspace + bytes - end, end);
    }
    run(p);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->workspace = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "the operation completed successfully";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "an error unknown to the emulator";
  }
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void* alpha, const void* a, cudaDataType type_a, int lda,
                                          long long stride_a, const void* b, cudaDataType type_b, int ldb,
                                          long long stride_b, const void* beta, void* c, cudaDataType type_c, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
  Rounding rounding = Rounding::none;
  switch (compute) {
    case CUBLAS_COMPUTE_32F:
      if (handle->math == CUBLAS_TF32_TENSOR_OP_MATH) rounding = Rounding::tf32;
      break;
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      break;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      rounding = Rounding::tf32;
      break;
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      rounding = Rounding::bf16;
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return enqueue(handle, {m,
                          n,
                          k,
                          batch,
                          *static_cast<const float*>(alpha),
                          *static_cast<const float*>(beta),
                          {a, type_a, op_a != CUBLAS_OP_N, lda, stride_a},
                          {b, type_b, op_b != CUBLAS_OP_N, ldb, stride_b},
                          {c, type_c, false, ldc, stride_c},
                          rounding});
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType type_a, int lda, const void* b,
                            cudaDataType type_b, int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c,
                                    type_c, ldc, 0, 1, compute, algorithm);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                         int n, int k, const float* alpha, const float* a, int lda, long long stride_a,
                                         const float* b, int ldb, long long stride_b, const float* beta, float* c,
                                         int ldc, long long stride_c, int batch) {
  return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, CUDA_R_32F, lda, stride_a, b, CUDA_R_32F,
                                    ldb, stride_b, beta, c, CUDA_R_32F, ldc, stride_c, batch, CUBLAS_COMPUTE_32F,
                                    CUBLAS_GEMM_DEFAULT);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                              int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                              const float* beta, float* c, int ldc) {
  return cublasSgemmStridedBatched(handle, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}

}  // extern "C"
