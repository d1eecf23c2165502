// cuBLAS thinks in columns: what lies in memory as a row-major [m,n] matrix is to it the [n,m] transposed. So it is
// asked for c^T = op(b)^T op(a)^T, with the operands swapped and everything else as it is.
//
// Which of its kernels computes a product is asked once for each kind of product and kept, and the workspace has a
// fixed size: so two runs take the same kernels and give the same bytes, and a product can be part of a captured graph.
// It may choose a kernel for a product with an epilogue (bias, relu) that then refuses to run; that is
// kept, too, and the caller does the epilogue with a kernel of ours.
#include "cuda/cublas.h"

#include <cublasLt.h>

#include <array>
#include <limits>
#include <map>

#include "cuda/launch.h"
#include "ops/numerics.h"

namespace runnel::cuda {
namespace {

constexpr size_t workspace_bytes = size_t{32} << 20;

void check_cublas(cublasStatus_t status, const char* what) {
  check(status == CUBLAS_STATUS_SUCCESS, what, ": cuBLAS failed with status ", static_cast<int>(status));
}

// Made once and kept: when the program ends, the driver may be gone before it.
struct Library {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  Library() {
    check_cublas(cublasLtCreate(&handle), "cublasLtCreate");
    check_cuda(cudaMalloc(&workspace, workspace_bytes), "the workspace of cuBLAS");
  }
};
const Library& library() {
  static const Library the_library;
  return the_library;
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

// Kernels that load several numbers at once need operands that start at a multiple of so many bytes. 256 for null.
int64_t alignment(const void* p) {
  int64_t bytes = 256;
  while (reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes)) bytes /= 2;
  return bytes;
}

struct Alignments {
  int64_t a, b, c, bias;
};

class Matrix {  // one of cuBLAS' matrices, `rows` by `columns` by column
 public:
  Matrix(int64_t rows, int64_t columns, int64_t batch, int64_t stride) {
    check_cublas(cublasLtMatrixLayoutCreate(&layout_, CUDA_R_32F, static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns), rows),
                 "cublasLtMatrixLayoutCreate");
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  cublasLtMatrixLayout_t layout() const { return layout_; }

 private:
  template <class T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    check_cublas(cublasLtMatrixLayoutSetAttribute(layout_, attribute, &value, sizeof value),
                 "cublasLtMatrixLayoutSetAttribute");
  }
  cublasLtMatrixLayout_t layout_ = nullptr;
};

// A product of one kind: everything but the addresses.
class Plan {
 public:
  // [k,n] and [m,k], or transposed
  Plan(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, const ProductOptions& o,
       const Alignments& alignments)
      : left_(transpose_b ? k : n, transpose_b ? n : k, o.batch, n * k),
        right_(transpose_a ? m : k, transpose_a ? k : m, o.batch, o.same_a ? 0 : m * k),
        result_(n, m, o.batch, m * n) {
    check_cublas(cublasLtMatmulDescCreate(&product_, compute_type(), CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (o.bias || o.relu) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, !o.relu   ? CUBLASLT_EPILOGUE_BIAS
                                         : !o.bias ? CUBLASLT_EPILOGUE_RELU
                                                   : CUBLASLT_EPILOGUE_RELU_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
      if (o.batch > 1) set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, n);
    }
    cublasLtMatmulPreference_t wish = nullptr;
    check_cublas(cublasLtMatmulPreferenceCreate(&wish), "cublasLtMatmulPreferenceCreate");
    const auto ask = [wish](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check_cublas(cublasLtMatmulPreferenceSetAttribute(wish, attribute, &value, sizeof value),
                   "cublasLtMatmulPreferenceSetAttribute");
    };
    // cuBLAS' A is our b.
    ask(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes});
    ask(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(alignments.b));
    ask(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(alignments.a));
    ask(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(alignments.c));
    ask(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(alignments.c));
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(library().handle, product_, left_.layout(), right_.layout(), result_.layout(),
                                       result_.layout(), wish, 1, &best, &found);
    check_cublas(cublasLtMatmulPreferenceDestroy(wish), "cublasLtMatmulPreferenceDestroy");
    is_known_ = status == CUBLAS_STATUS_SUCCESS && found == 1;
    algorithm_ = best.algo;
  }

  bool is_known() const { return is_known_; }  // to cuBLAS

  // Returns false, has done nothing, and is no longer known if cuBLAS refuses it.
  bool run(float* c, const float* a, const float* b, const ProductOptions& o) {
    if (o.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
    const float none = 0;
    const cublasStatus_t status =
        cublasLtMatmul(library().handle, product_, &o.factor, b, left_.layout(), a, right_.layout(),
                       o.added ? &o.added_factor : &none, o.added ? o.added : c, result_.layout(), c, result_.layout(),
                       &algorithm_, library().workspace, workspace_bytes, stream());
    is_known_ = status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE &&
                status != CUBLAS_STATUS_ARCH_MISMATCH;
    if (is_known_) check_cublas(status, "matrix product");
    return is_known_;
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check_cublas(cublasLtMatmulDescSetAttribute(product_, attribute, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
  }

  Matrix left_, right_, result_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  bool is_known_ = false;
};

}  // namespace

bool product(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
             bool transpose_b, const ProductOptions& options) {
  const bool has_epilogue = options.bias || options.relu;
  if (m == 0 || n == 0 || k == 0 || options.batch == 0) {
    if (has_epilogue) return false;
    check(!options.added || options.added == c, "matrix product: nothing to add to another matrix");
    if (!options.added && options.batch * m * n > 0)
      check_cuda(cudaMemsetAsync(c, 0, static_cast<size_t>(options.batch * m * n) * sizeof(float), stream()),
                 "matrix product");
    return true;
  }
  check(std::max({m, n, k}) <= std::numeric_limits<int>::max(), "matrix product: [", m, ",", k, "] times [", k, ",", n,
        "] has more rows or columns than cuBLAS can count");
  const Alignments alignments{alignment(a), alignment(b), std::min(alignment(c), alignment(options.added)),
                              alignment(options.bias)};
  static auto& plans = *new std::map<std::array<int64_t, 15>, Plan>;  // kept, as the library is
  const std::array<int64_t, 15> kind{m,
                                     n,
                                     k,
                                     transpose_a,
                                     transpose_b,
                                     options.batch,
                                     options.same_a,
                                     options.added != nullptr,
                                     options.bias != nullptr,
                                     options.relu,
                                     static_cast<int64_t>(precision()),
                                     alignments.a,
                                     alignments.b,
                                     alignments.c,
                                     alignments.bias};
  auto plan = plans.find(kind);
  if (plan == plans.end())
    plan = plans.emplace(kind, Plan(m, n, k, transpose_a, transpose_b, options, alignments)).first;
  if (plan->second.is_known()) {
    const cudaEvent_t begin = begin_timing();
    const bool done = plan->second.run(c, a, b, options);
    end_timing(done ? "product" : "product whose epilogue cuBLAS refused", begin);
    if (done) return true;
  }
  check(has_epilogue, "matrix product: cuBLAS cannot multiply [", m, ",", k, "] and [", k, ",", n,
        "] on this GPU; compute with another --precision, or on the CPU with --device cpu");
  return false;
}

}  // namespace runnel::cuda
