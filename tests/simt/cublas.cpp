// cuBLAS in plain loops, so that the sanitizers see every access to an operand; a tuned library would hide them.
// Matrices are column-major, d[m,n] = alpha op(a)[m,k] op(b)[k,n] + beta c. Rows of op(a) are the inner loop: its
// columns are packed one after another, as the compute type rounds them, and added up in the order of k; with an odd
// seed in two halves, since cuBLAS may split k, too. A workspace holds NaN afterwards.
//
// An algorithm remembers what it was asked for with: operands that start elsewhere, or a smaller workspace, are errors.
// With one seed of three there are none that add a bias, as for some shapes and GPUs. SIMT_FAULT: with
// "refused-epilogues" those are found and then refuse to run, with "refused-products" all do.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>

#include "runtime.h"

namespace {

enum class Rounding { none, tf32, bf16 };

// What NVIDIA's opaque structs hold here.
struct Description {
  cublasComputeType_t compute;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int64_t bias_stride = 0;
};
struct Layout {
  uint64_t rows, columns;
  int64_t leading;  // elements from one column to the next
  int32_t batch = 1;
  int64_t stride = 0;  // from one matrix of the batch to the next
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};  // of a, b, c and d
};

template <class T, class Opaque>
const T& content(const Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  return *reinterpret_cast<const T*>(opaque);
}
template <class T, class Opaque>
T& content(Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  return *reinterpret_cast<T*>(opaque);
}
template <class Opaque, class T>
cublasStatus_t create(Opaque** opaque, const T& value) {
  *opaque = new Opaque{};
  new (*opaque) T(value);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t set(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

float rounded(float x, Rounding rounding) {
  if (rounding == Rounding::none || !std::isfinite(x)) return x;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (rounding == Rounding::bf16)  // to nearest, ties to even
    return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
  return std::bit_cast<float>((bits + 0x1000u) & 0xffffe000u);  // ties away from zero
}

struct Product {
  Description how;
  Layout a, b, d;
  const float *a_data, *b_data, *c_data;
  float* d_data;
  float alpha, beta;
  int64_t m, n, k;
  Rounding rounding;

  // Element (row, column) of op(x) in matrix z of the batch.
  static int64_t index(const Layout& x, int32_t transpose, int64_t z, int64_t row, int64_t column) {
    if (transpose != CUBLAS_OP_N) std::swap(row, column);
    return z * x.stride + row + column * x.leading;
  }
  float left(int64_t z, int64_t i, int64_t l) const { return a_data[index(a, how.transpose_a, z, i, l)]; }
  float right(int64_t z, int64_t l, int64_t j) const { return b_data[index(b, how.transpose_b, z, l, j)]; }

  float finished(float sum, int64_t z, int64_t row) const {
    const uint32_t epilogue = how.epilogue;
    if (epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS)
      sum += static_cast<const float*>(how.bias)[z * how.bias_stride + row];
    const bool relu = epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    return relu && !(sum > 0) ? 0 : sum;
  }

  void run() const {
    const size_t height = static_cast<size_t>(m);
    std::vector<float> columns(height * static_cast<size_t>(k)), sums(height), first_half(height);
    const int64_t half = simt::seed() % 2 == 1 ? k / 2 : 0;
    for (int64_t z = 0; z < d.batch; ++z) {
      for (int64_t l = 0; l < k; ++l)
        for (int64_t i = 0; i < m; ++i) columns[static_cast<size_t>(l * m + i)] = rounded(left(z, i, l), rounding);
      for (int64_t j = 0; j < n; ++j) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        std::fill(first_half.begin(), first_half.end(), 0.0f);
        for (int64_t l = 0; l < k; ++l) {
          if (l == half) std::swap(sums, first_half);
          const float factor = rounded(right(z, l, j), rounding);
          const float* column = columns.data() + l * m;
          for (size_t i = 0; i < height; ++i) sums[i] += column[i] * factor;
        }
        for (int64_t i = 0; i < m; ++i) {
          const int64_t at = index(d, CUBLAS_OP_N, z, i, j);
          const float before = beta == 0 ? 0 : beta * c_data[at];  // with beta = 0, c may hold NaN
          const float sum = first_half[static_cast<size_t>(i)] + sums[static_cast<size_t>(i)];
          d_data[at] = finished(alpha * sum + before, z, i);
        }
      }
    }
  }
};

bool has_vector(const Description& how) {
  return how.epilogue == CUBLASLT_EPILOGUE_BIAS || how.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
}

bool is_aligned(const void* address, uint32_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static char any;
  *handle = reinterpret_cast<cublasLtHandle_t>(&any);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  Description how;
  how.compute = compute;
  return create(description, how);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  Description& how = content<Description>(description);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(how.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(how.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(how.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(how.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return set(how.bias_stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  if (type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (leading < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  return create(layout, Layout{rows, columns, leading});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  Layout& x = content<Layout>(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(x.batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(x.stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  Preference& wish = content<Preference>(preference);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return set(wish.workspace, value, bytes);
  const int operand = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  if (operand < 0 || operand > 3) return CUBLAS_STATUS_NOT_SUPPORTED;
  return set(wish.alignments[operand], value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (has_vector(content<Description>(description)) && simt::seed() % 3 == 2 && simt::fault() != "refused-epilogues")
    return CUBLAS_STATUS_NOT_SUPPORTED;
  results[0] = {};
  content<Preference>(&results[0].algo) = content<Preference>(preference);
  results[0].workspaceSize = content<Preference>(preference).workspace;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  Product p{content<Description>(description),
            content<Layout>(a_layout),
            content<Layout>(b_layout),
            content<Layout>(d_layout),
            static_cast<const float*>(a),
            static_cast<const float*>(b),
            static_cast<const float*>(c),
            static_cast<float*>(d),
            *static_cast<const float*>(alpha),
            *static_cast<const float*>(beta),
            0,
            0,
            0,
            Rounding::none};
  const auto sizes = [](const Layout& x, int32_t transpose) {
    const bool swap = transpose != CUBLAS_OP_N;
    return std::pair<int64_t, int64_t>(swap ? x.columns : x.rows, swap ? x.rows : x.columns);
  };
  const auto [m, k] = sizes(p.a, p.how.transpose_a);
  const auto [k_of_b, n] = sizes(p.b, p.how.transpose_b);
  p.m = m, p.n = n, p.k = k;
  const Layout& c_shape = content<Layout>(c_layout);
  if (m <= 0 || n <= 0 || k <= 0 || k_of_b != k || sizes(p.d, CUBLAS_OP_N) != std::pair(m, n) ||
      sizes(c_shape, CUBLAS_OP_N) != std::pair(m, n) || p.a.batch != p.d.batch || p.b.batch != p.d.batch)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (p.d.batch < 1) return CUBLAS_STATUS_EXECUTION_FAILED;
  switch (p.how.compute) {
    case CUBLAS_COMPUTE_32F:
      break;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      p.rounding = Rounding::tf32;
      break;
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      p.rounding = Rounding::bf16;
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (simt::fault() == "refused-products" ||
      (simt::fault() == "refused-epilogues" && p.how.epilogue != CUBLASLT_EPILOGUE_DEFAULT))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const Preference& promised = content<Preference>(algorithm);
  const void* const operands[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (!is_aligned(operands[i], promised.alignments[i]))
      simt::fail("operand %d of a matrix product does not start at a multiple of %u bytes, as its algorithm expects", i,
                 promised.alignments[i]);
  if (workspace_bytes < promised.workspace)
    simt::fail("a matrix product has %zu bytes of workspace, but its algorithm was chosen for %zu", workspace_bytes,
               static_cast<size_t>(promised.workspace));
  simt::require_device_memory({a, b, c, d, workspace, has_vector(p.how) ? p.how.bias : nullptr}, "a matrix product");
  simt::launched().insert("matmul");
  ++simt::launches();
  if (simt::fault() == "idle")
    return simt::enqueue(stream, {}) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
  return simt::enqueue(stream,
                       [p, workspace = static_cast<char*>(workspace), workspace_bytes] {
                         const size_t end = std::min<size_t>(workspace_bytes, 4096);  // its two ends will do
                         if (workspace) {
                           simt::make_undefined(workspace, end);
                           simt::make_undefined(workspace + workspace_bytes - end, end);
                         }
                         p.run();
                       }) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
