// Small kernels, each with one bug, at the line that says so; and controls, which have none.
#include "tests/simt/plants.h"

#include <cublasLt.h>
#if RUNNEL_WITH_NCCL
#include <nccl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#endif

#include <thread>

#include "cuda/launch.h"

namespace {

using namespace runnel;
using namespace runnel::cuda;

Grid block(unsigned threads, size_t shared = 0) { return {dim3(1), dim3(threads), shared}; }
size_t floats(int n) { return SharedBytes().add<float>(n).bytes(); }

float zero(int) { return 0; }
float reversed32(int i) { return i < 32 ? 31.0f - static_cast<float>(i) : 0; }
float reversed64(int i) { return i < 64 ? 63.0f - static_cast<float>(i) : 0; }

// --- order between threads ---

__global__ void missing_syncthreads_kernel(float* out) {
  Shared shared;
  float* s = shared.take<float>(64);
  s[threadIdx.x] = static_cast<float>(threadIdx.x);
  out[threadIdx.x] = s[63 - threadIdx.x];  // bug: missing_syncthreads
}

__global__ void missing_syncwarp_kernel(float* out) {
  Shared shared;
  float* s = shared.take<float>(32);
  s[threadIdx.x] = static_cast<float>(threadIdx.x);
  out[threadIdx.x] = s[31 - threadIdx.x];  // bug: missing_syncwarp
}

// Without the first barrier of block_sum: scratch is written while others still read the sum before.
__global__ void scratch_reused_kernel(float* out) {
  Shared shared;
  float* scratch = shared.take<float>(32);
  float sum = 0;
  for (int i = 0; i < 2; ++i) {
    const float of_warp = warp_sum(1.0f);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = of_warp;  // bug: scratch_reused
    __syncthreads();
    sum += warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f);
  }
  out[threadIdx.x] = sum;
}

__global__ void race_between_threads_kernel(float* out) {
  out[threadIdx.x % 4] += 1;  // bug: race_between_threads
}

__global__ void race_between_blocks_kernel(float* out) {
  if (threadIdx.x == 0) out[0] += 1;  // bug: race_between_blocks
}

__global__ void divergent_barrier_kernel(float* out) {
  if (threadIdx.x < 32) __syncthreads();  // bug: divergent_barrier
  out[threadIdx.x] = 0;
}

__global__ void different_barriers_kernel(float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();  // bug: different_barriers
  } else {
    __syncthreads();  // bug: different_barriers
  }
  out[threadIdx.x] = 0;
}

__global__ void shuffle_after_return_kernel(float* out, unsigned n) {
  if (threadIdx.x >= n) return;
  out[threadIdx.x] = __shfl_xor_sync(all_lanes, 0.0f, 1);  // bug: shuffle_after_return
}

// --- memory ---

__global__ void shared_past_array_kernel(float* out) {
  Shared shared;
  float* a = shared.take<float>(32);
  float* b = shared.take<float>(32);
  b[threadIdx.x] = 0;
  a[threadIdx.x + 1] = 0;  // bug: shared_past_array
  out[threadIdx.x] = b[threadIdx.x];
}

__global__ void shared_past_all_kernel(float* out) {
  Shared shared;
  float* a = shared.take<float>(32);
  a[threadIdx.x] = 0;
  out[threadIdx.x] = a[threadIdx.x + 1];  // bug: shared_past_all
}

__global__ void too_little_shared_kernel(float* out) {
  Shared shared;
  float* a = shared.take<float>(32);  // bug: too_little_shared
  out[threadIdx.x] = a[threadIdx.x] = 0;
}

__global__ void uninitialised_shared_kernel(float* out) {
  Shared shared;
  float* a = shared.take<float>(32);
  if (threadIdx.x < 31) a[threadIdx.x] = 0;
  __syncthreads();
  out[threadIdx.x] = a[threadIdx.x] * 2;  // bug: uninitialised_shared
}

__global__ void global_past_end_kernel(const float* x, float* out) {
  out[threadIdx.x] = x[threadIdx.x + 1];  // bug: global_past_end
}

__global__ void misaligned_kernel(const float* x, float* out) {
  const float4 four = *reinterpret_cast<const float4*>(x + 1);  // bug: misaligned
  out[threadIdx.x] = four.x - four.x;
}

__global__ void copy_kernel(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }

struct Holder {  // inside structs, the emulator does not look for freed device memory
  const float* x;
};
__global__ void use_after_free_kernel(Holder holder, float* out) {
  out[threadIdx.x] = holder.x[threadIdx.x];  // bug: use_after_free
}

float* freed() {
  void* memory = nullptr;
  check_cuda(cudaMallocAsync(&memory, Buffers::size * sizeof(float), stream()), "cudaMallocAsync");
  check_cuda(cudaFreeAsync(memory, stream()), "cudaFreeAsync");
  return static_cast<float*>(memory);
}

struct Scaled {
  float factor;
  const float* x;
};
__global__ void scaled_kernel(Scaled scaled, float* out) { out[threadIdx.x] = scaled.factor * scaled.x[threadIdx.x]; }
void run_host_pointer_in_struct(const Buffers& buffers, const float* x) {
  launch("", scaled_kernel, block(32), Scaled{1, x}, buffers.out);
  check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");  // before x is gone
}
float up_to_32(int i) { return i < 32 ? static_cast<float>(i) : 0; }

void run_host_reads_device(const Buffers& buffers) {
  const volatile float* x = buffers.x;
  static_cast<void>(x[3]);  // bug: host_reads_device
}

// --- asynchronous copies ---

__global__ void copy_without_wait_kernel(const float* x, float* out) {
  Shared shared;
  float* a = shared.take<float>(128);
  copy16_async(a + threadIdx.x * 4, x + threadIdx.x * 4);
  copy_async_commit();
  out[threadIdx.x] = a[threadIdx.x * 4];  // bug: copy_without_wait
  copy_async_wait<0>();
}

__global__ void copy_without_barrier_kernel(const float* x, float* out) {
  Shared shared;
  float* a = shared.take<float>(128);
  copy16_async(a + threadIdx.x * 4, x + threadIdx.x * 4);
  copy_async_commit();
  copy_async_wait<0>();
  out[threadIdx.x] = a[124 - threadIdx.x * 4];  // bug: copy_without_barrier
}

__global__ void copy_never_waited_kernel(const float* x, float* out) {
  Shared shared;
  float* a = shared.take<float>(128);
  copy16_async(a + threadIdx.x * 4, x + threadIdx.x * 4);
  copy_async_commit();
  out[threadIdx.x] = 0;
}

__global__ void copy_past_array_kernel(const float* x, float* out) {
  Shared shared;
  float* a = shared.take<float>(124);
  copy16_async(a + threadIdx.x * 4, x + threadIdx.x * 4);  // bug: copy_past_array
  copy_async_commit();
  copy_async_wait<0>();
  out[threadIdx.x] = 0;
}

// --- what is right on some devices only ---

int attribute(cudaDeviceAttr which) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, 0), "cudaDeviceGetAttribute");
  return value;
}

__global__ void sum_per_block_kernel(const float* x, float* sums) {
  if (threadIdx.x > 0) return;
  sums[blockIdx.x] = 0;
  for (unsigned i = blockIdx.x; i < Buffers::size; i += gridDim.x) sums[blockIdx.x] += x[i];
}
__global__ void sum_of_blocks_kernel(const float* sums, unsigned blocks, float* out) {  // a warp, for 32 blocks at most
  const float sum = warp_sum(threadIdx.x < blocks ? sums[threadIdx.x] : 0.0f);
  if (threadIdx.x == 0) out[0] = sum;
}
// A block per multiprocessor, but of no more than 32 the sums are added.
void run_many_multiprocessors(const Buffers& buffers) {
  const auto blocks = static_cast<unsigned>(attribute(cudaDevAttrMultiProcessorCount));
  void* memory = nullptr;
  check_cuda(cudaMallocAsync(&memory, blocks * sizeof(float), stream()), "cudaMallocAsync");
  float* const sums = static_cast<float*>(memory);
  launch("", sum_per_block_kernel, Grid{dim3(blocks), dim3(32)}, buffers.x, sums);
  launch("", sum_of_blocks_kernel, block(32), sums, blocks, buffers.out);
  check_cuda(cudaFreeAsync(memory, stream()), "cudaFreeAsync");
}

__global__ void neighbours_kernel(const float* x, float* out) {
  Shared shared;
  float* s = shared.take<float>(32 * 1024);
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x ^ 1];
}
// What is done only where 128 KiB of shared memory are there is wrong.
void run_much_shared_memory(const Buffers& buffers) {
  if (static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) < floats(32 * 1024))
    launch("", copy_kernel, block(Buffers::size), buffers.x, buffers.out);
  else
    launch("", neighbours_kernel, block(Buffers::size, floats(32 * 1024)), buffers.x, buffers.out);
}

__global__ void exact_functions_kernel(float* out) {
  out[threadIdx.x] = floorf(logf(expf(static_cast<float>(4 + threadIdx.x % 64)))) - 4;
}

__global__ void exact_log1p_kernel(float* out) { out[threadIdx.x] = log1pf(static_cast<float>(threadIdx.x)); }

// --- instructions of a warp ---

__device__ __forceinline__ float with_other_half(float x) { return x + __shfl_xor_sync(all_lanes, x, 16); }
__global__ void inlined_twice_kernel(float* out) {
  const float x = static_cast<float>(threadIdx.x);
  if (threadIdx.x < 16)
    out[threadIdx.x] = with_other_half(x);
  else
    out[threadIdx.x] = 2 * with_other_half(x + 1) - 2;
}

__device__ __attribute__((noinline)) float sum_of_lanes(float x) { return warp_sum(x); }
__global__ void called_twice_kernel(float* out) {
  const float x = static_cast<float>(threadIdx.x);
  if (threadIdx.x < 16)
    out[threadIdx.x] = sum_of_lanes(x);  // bug: called_twice
  else
    out[threadIdx.x] = 2 * sum_of_lanes(x / 2);
}

__global__ void mma_unrounded_kernel(const float* x, float* out) {
  const float third = x[threadIdx.x] / 3;
  const uint32_t left[4] = {to_tf32(third), __float_as_uint(third), 0, 0}, right[2] = {to_tf32(1), 0};
  float d[4] = {};
  mma_tf32(d, left, right);
  out[threadIdx.x] = d[0];
}

__global__ void matrix_in_global_memory_kernel(const float* x, float* out) {
  uint32_t left[4];
  load_matrices(left, x + threadIdx.x % 16 * 4);  // bug: matrix_in_global_memory
  out[threadIdx.x] = __uint_as_float(left[0]);
}

__global__ void misaligned_matrix_kernel(const float* x, float* out) {
  Shared shared;
  float* a = shared.take<float>(16 * 5);
  for (unsigned i = threadIdx.x; i < 16 * 5; i += 32) a[i] = x[i];
  __syncthreads();
  uint32_t left[4];
  load_matrices(left, a + threadIdx.x % 16 * 5);  // bug: misaligned_matrix
  out[threadIdx.x] = __uint_as_float(left[0]);
}

__global__ void matrix_without_barrier_kernel(const float* x, float* out) {
  Shared shared;
  float* a = shared.take<float>(32 * 4);
  for (unsigned i = 0; i < 4; ++i) a[threadIdx.x * 4 + i] = x[threadIdx.x * 4 + i];
  uint32_t left[4];
  load_matrices(left, a + threadIdx.x * 4);  // bug: matrix_without_barrier
  out[threadIdx.x] = __uint_as_float(left[0]);
}

// --- cuBLAS ---

struct Workspace {
  void* begin = nullptr;
  size_t bytes = 0;
};

// d = op(a) b for column-major matrices [m,k] or its transpose, and [k,n].
void multiply(float* d, const float* a, const float* b, uint64_t m, uint64_t n, uint64_t k, cublasOperation_t op_a,
              cublasComputeType_t compute = CUBLAS_COMPUTE_32F, Workspace workspace = {}, uint64_t promised = 0) {
  const bool swap = op_a == CUBLAS_OP_T;
  const float one = 1, none = 0;
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t left, right, result;
  cublasLtMatmulPreference_t wish;
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  cublasLtCreate(&handle);
  cublasLtMatmulDescCreate(&product, compute, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
  cublasLtMatrixLayoutCreate(&left, CUDA_R_32F, swap ? k : m, swap ? m : k, static_cast<int64_t>(swap ? k : m));
  cublasLtMatrixLayoutCreate(&right, CUDA_R_32F, k, n, static_cast<int64_t>(k));
  cublasLtMatrixLayoutCreate(&result, CUDA_R_32F, m, n, static_cast<int64_t>(m));
  cublasLtMatmulPreferenceCreate(&wish);
  cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &promised, sizeof promised);
  const uint32_t bytes = 32;  // where operands of the plants start
  for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    cublasLtMatmulPreferenceSetAttribute(wish, operand, &bytes, sizeof bytes);
  cublasLtMatmulAlgoGetHeuristic(handle, product, left, right, result, result, wish, 1, &best, &found);
  cublasLtMatmul(handle, product, &one, a, left, b, right, &none, d, result, d, result, &best.algo, workspace.begin,
                 workspace.bytes, stream());
  for (const cublasLtMatrixLayout_t layout : {left, right, result}) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulPreferenceDestroy(wish);
  cublasLtMatmulDescDestroy(product);
}

// result[0] = 1e8 + 1 - 1e8 + 1, which is 1 if added in this order.
void sum_of_four(const Buffers& buffers, float* result, Workspace workspace = {}, uint64_t promised = 0) {
  static const float terms[] = {1e8f, 1, -1e8f, 1}, ones[] = {1, 1, 1, 1};
  for (const float* values : {terms, ones})
    check_cuda(
        cudaMemcpyAsync(buffers.x + (values == ones ? 8 : 0), values, sizeof terms, cudaMemcpyHostToDevice, stream()),
        "cudaMemcpyAsync");
  multiply(result, buffers.x, buffers.x + 8, 1, 1, 4, CUBLAS_OP_N, CUBLAS_COMPUTE_32F, workspace, promised);
}

void run_order_of_k(const Buffers& buffers) { sum_of_four(buffers, buffers.out); }

void run_workspace_in_use(const Buffers& buffers) {
  const size_t bytes = Buffers::size * sizeof(float);
  sum_of_four(buffers, buffers.x + 16, {buffers.out, bytes}, bytes);
}

void run_small_workspace(const Buffers& buffers) { sum_of_four(buffers, buffers.out, {buffers.x + 16, 64}, 128); }

void run_misaligned_operand(const Buffers& buffers) { sum_of_four(buffers, buffers.out + 1); }

// --- controls ---

__global__ void sums_kernel(const float* x, float* out) {
  Shared shared;
  float* scratch = shared.take<float>(32);
  const float sum = block_sum(x[threadIdx.x], scratch), sum_of_squares = block_sum(x[threadIdx.x] * 2, scratch);
  out[threadIdx.x] = __syncthreads_count(threadIdx.x < 3) == 3 ? sum + sum_of_squares : -1;
}
float three_sums(int) { return 3 * 127 * 64; }

// Out of two stages of copies, and the matrix [16,8] of x times a diagonal matrix of ones and twos.
__global__ void mma_kernel(const float* x, float* out) {
  Shared shared;
  float* a = shared.take<float>(2 * 64);
  const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
  for (unsigned stage = 0; stage < 2; ++stage) {
    if (threadIdx.x < 16) copy16_async(a + stage * 64 + threadIdx.x * 4, x + stage * 64 + threadIdx.x * 4);
    copy_async_commit();
  }
  copy_async_wait<1>();
  copy_async_wait<0>();
  __syncthreads();
  uint32_t left[4];
  load_matrices(left, a + threadIdx.x % 16 * 8 + threadIdx.x / 16 * 4);
  const auto diagonal = [](unsigned row, unsigned column) {
    return to_tf32(row != column ? 0.0f : row % 2 ? 2.0f : 1.0f);
  };
  const uint32_t right[2] = {diagonal(t, g), diagonal(t + 4, g)};
  float d[4] = {};
  mma_tf32(d, left, right);
  for (unsigned i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}
float twice_if_odd(int i) { return static_cast<float>(i % 2 ? 2 * i : i); }

__global__ void add_kernel(float* y, const float* x, float factor) { y[threadIdx.x] += factor * x[threadIdx.x]; }
float four_times(int i) { return 4 * static_cast<float>(i); }

// Memory of the graph, which lives from one node to another; launched twice, and once more after the graph is gone.
void run_graph(const Buffers& buffers) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "begin");
  void* memory = nullptr;
  check_cuda(cudaMallocAsync(&memory, Buffers::size * sizeof(float), stream()), "cudaMallocAsync");
  launch("copy", copy_kernel, block(Buffers::size), buffers.x, static_cast<float*>(memory));
  launch("add", add_kernel, block(Buffers::size), buffers.out, static_cast<float*>(memory), 1.0f);
  check_cuda(cudaFreeAsync(memory, stream()), "cudaFreeAsync");
  check_cuda(cudaStreamEndCapture(stream(), &graph), "end");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (int i = 0; i < 4; ++i) {
    check_cuda(cudaGraphLaunch(exec, stream()), "launch");
    if (i == 2) check_cuda(cudaGraphDestroy(graph), "destroy");
  }
  check_cuda(cudaGraphExecDestroy(exec), "destroy");
}

__global__ void freed_in_graph_kernel(Holder holder, float* out) {
  out[threadIdx.x] = holder.x[threadIdx.x];  // bug: freed_in_graph
}
void run_freed_in_graph(const Buffers& buffers) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "begin");
  const float* memory = freed();
  launch("freed_in_graph", freed_in_graph_kernel, block(Buffers::size), Holder{memory}, buffers.out);
  check_cuda(cudaStreamEndCapture(stream(), &graph), "end");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  check_cuda(cudaGraphLaunch(exec, stream()), "launch");
}

// out = x on a second stream, out += x on the first, which waits for the second or does not.
void run_two_streams(const Buffers& buffers, bool waits) {
  cudaStream_t second;
  cudaEvent_t begun, copied;
  check_cuda(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check_cuda(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  check_cuda(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  check_cuda(cudaEventRecord(begun, stream()), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(second, begun, 0), "cudaStreamWaitEvent");
  {
    const OnStream on_second(second);
    launch("copy", copy_kernel, block(Buffers::size), buffers.x, buffers.out);
  }
  check_cuda(cudaEventRecord(copied, second), "cudaEventRecord");
  if (waits) check_cuda(cudaStreamWaitEvent(stream(), copied, 0), "cudaStreamWaitEvent");
  launch("add", add_kernel, block(Buffers::size), buffers.out, buffers.x, 1.0f);
  check_cuda(cudaEventDestroy(begun), "cudaEventDestroy");
  check_cuda(cudaEventDestroy(copied), "cudaEventDestroy");
}
void run_two_streams_in_graph(const Buffers& buffers, bool waits) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "begin");
  run_two_streams(buffers, waits);
  check_cuda(cudaStreamEndCapture(stream(), &graph), "end");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (int i = 0; i < 2; ++i) check_cuda(cudaGraphLaunch(exec, stream()), "launch");
  check_cuda(cudaGraphDestroy(graph), "destroy");
  check_cuda(cudaGraphExecDestroy(exec), "destroy");
}
float twice(int i) { return 2 * static_cast<float>(i); }

// The copy's own error is ignored: the capture must end in one.
void run_captured_copy_from_host(const Buffers& buffers) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "begin");
  const std::vector<float> values(Buffers::size, 0.0f);
  static_cast<void>(
      cudaMemcpyAsync(buffers.out, values.data(), values.size() * sizeof(float), cudaMemcpyDefault, stream()));
  check_cuda(cudaStreamEndCapture(stream(), &graph), "end");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  check_cuda(cudaGraphLaunch(exec, stream()), "launch");
  check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
}

// out[8,16] = p p^T x = x, where p exchanges rows i and i + 4, read as it is and transposed.
void run_cublas(const Buffers& buffers) {
  float p[64] = {}, *device_p = nullptr, *transposed = nullptr;
  for (int i = 0; i < 8; ++i) p[i * 8 + (i + 4) % 8] = 1;
  const size_t bytes = sizeof p;
  check_cuda(cudaMalloc(reinterpret_cast<void**>(&device_p), bytes), "cudaMalloc");
  check_cuda(cudaMalloc(reinterpret_cast<void**>(&transposed), Buffers::size * sizeof(float)), "cudaMalloc");
  check_cuda(cudaMemcpyAsync(device_p, p, bytes, cudaMemcpyHostToDevice, stream()), "cudaMemcpyAsync");
  // p^T x, then p p^T x, which is x again.
  multiply(transposed, device_p, buffers.x, 8, 16, 8, CUBLAS_OP_T);
  for (const cublasComputeType_t compute :
       {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_16BF})
    multiply(buffers.out, device_p, transposed, 8, 16, 8, CUBLAS_OP_N, compute);
  check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  check_cuda(cudaFree(device_p), "cudaFree");
  check_cuda(cudaFree(transposed), "cudaFree");
}
float itself(int i) { return static_cast<float>(i); }

#if RUNNEL_WITH_NCCL
enum class Issue { directly, in_a_graph, in_two_graphs };

// Twice, as it says.
template <class Operation>
void issue(Issue how, Operation operation) {
  if (how == Issue::directly)
    for (int i = 0; i < 2; ++i) operation();
  const int graphs = how == Issue::directly ? 0 : how == Issue::in_a_graph ? 1 : 2;
  for (int i = 0; i < graphs; ++i) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "begin");
    operation();
    check_cuda(cudaStreamEndCapture(stream(), &graph), "end");
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    for (int launch = 0; launch < 2 / graphs; ++launch) check_cuda(cudaGraphLaunch(exec, stream()), "launch");
    check_cuda(cudaGraphDestroy(graph), "destroy");
    check_cuda(cudaGraphExecDestroy(exec), "destroy");
  }
  check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
}

// A second process sends x, and this one receives it.
void run_message(const Buffers& buffers, Issue sends, Issue receives) {
  const auto check_nccl = [](ncclResult_t status) { check(status == ncclSuccess, ncclGetLastError(nullptr)); };
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id));
  const bool is_sender = fork() == 0;
  if (is_sender) prctl(PR_SET_PDEATHSIG, SIGKILL);
  ncclComm_t comm = nullptr;
  check_nccl(ncclCommInitRank(&comm, 2, id, is_sender));
  issue(is_sender ? sends : receives, [&] {
    check_nccl(is_sender ? ncclSend(buffers.x, Buffers::size, ncclFloat32, 0, comm, stream())
                         : ncclRecv(buffers.out, Buffers::size, ncclFloat32, 1, comm, stream()));
  });
  if (is_sender) _exit(0);
  check_nccl(ncclCommDestroy(comm));
}
#endif

}  // namespace

const std::vector<Plant> plants = {
    {"missing_syncthreads",
     [](const Buffers& b) { launch("", missing_syncthreads_kernel, block(64, floats(64)), b.out); }, reversed64},
    {"missing_syncwarp", [](const Buffers& b) { launch("", missing_syncwarp_kernel, block(32, floats(32)), b.out); },
     reversed32},
    {"scratch_reused", [](const Buffers& b) { launch("", scratch_reused_kernel, block(128, floats(32)), b.out); },
     [](int) { return 256.0f; }},
    {"race_between_threads", [](const Buffers& b) { launch("", race_between_threads_kernel, block(64), b.out); },
     [](int i) { return i < 4 ? 16.0f : 0; }},
    {"race_between_blocks",
     [](const Buffers& b) {
       launch("", race_between_blocks_kernel, Grid{dim3(8), dim3(32)}, b.out);
     },
     [](int i) { return i == 0 ? 8.0f : 0; }},
    {"divergent_barrier", [](const Buffers& b) { launch("", divergent_barrier_kernel, block(64), b.out); }, zero},
    {"different_barriers", [](const Buffers& b) { launch("", different_barriers_kernel, block(64), b.out); }, zero},
    {"shuffle_after_return", [](const Buffers& b) { launch("", shuffle_after_return_kernel, block(32), b.out, 20u); },
     zero},
    {"shared_past_array",
     [](const Buffers& b) {
       launch("", shared_past_array_kernel, block(32, SharedBytes().add<float>(32).add<float>(32).bytes()), b.out);
     },
     zero},
    {"shared_past_all", [](const Buffers& b) { launch("", shared_past_all_kernel, block(32, floats(32)), b.out); },
     zero},
    {"too_little_shared", [](const Buffers& b) { launch("", too_little_shared_kernel, block(32, floats(16)), b.out); },
     zero},
    {"uninitialised_shared",
     [](const Buffers& b) { launch("", uninitialised_shared_kernel, block(32, floats(32)), b.out); }, zero},
    {"global_past_end", [](const Buffers& b) { launch("", global_past_end_kernel, block(128), b.x, b.out); }, zero},
    {"misaligned", [](const Buffers& b) { launch("", misaligned_kernel, block(32), b.x, b.out); }, zero},
    {"use_after_free", [](const Buffers& b) { launch("", use_after_free_kernel, block(32), Holder{freed()}, b.out); },
     zero},
    {"argument_freed", [](const Buffers& b) { launch("", copy_kernel, block(32), freed(), b.out); }, zero},
    {"argument_of_host",
     [](const Buffers& b) {
       const std::vector<float> host(32);
       launch("", copy_kernel, block(32), host.data(), b.out);
     },
     zero},
    {"host_heap_in_struct",
     [](const Buffers& b) {
       std::vector<float> host(32);
       for (int i = 0; i < 32; ++i) host[static_cast<size_t>(i)] = static_cast<float>(i);
       run_host_pointer_in_struct(b, host.data());
     },
     up_to_32},
    {"host_stack_in_struct",
     [](const Buffers& b) {
       float host[32];
       for (int i = 0; i < 32; ++i) host[i] = static_cast<float>(i);
       run_host_pointer_in_struct(b, host);
     },
     up_to_32},
    {"control_struct", [](const Buffers& b) { run_host_pointer_in_struct(b, b.x); }, up_to_32},
    {"host_reads_device", run_host_reads_device, zero},
    {"copy_wrong_way",
     [](const Buffers& b) {
       float host[Buffers::size] = {};
       check_cuda(cudaMemcpyAsync(host, b.x, sizeof host, cudaMemcpyHostToDevice, stream()), "cudaMemcpyAsync");
     },
     zero},
    {"second_thread", [](const Buffers&) { std::thread([] { cudaStreamSynchronize(stream()); }).join(); }, zero},
    {"copy_without_wait",
     [](const Buffers& b) { launch("", copy_without_wait_kernel, block(32, floats(128)), b.x, b.out); },
     [](int i) { return i < 32 ? 4 * static_cast<float>(i) : 0; }},
    {"copy_without_barrier",
     [](const Buffers& b) { launch("", copy_without_barrier_kernel, block(32, floats(128)), b.x, b.out); },
     [](int i) { return i < 32 ? 124 - 4 * static_cast<float>(i) : 0; }},
    {"copy_never_waited",
     [](const Buffers& b) { launch("", copy_never_waited_kernel, block(32, floats(128)), b.x, b.out); }, zero},
    {"copy_past_array",
     [](const Buffers& b) { launch("", copy_past_array_kernel, block(32, floats(124)), b.x, b.out); }, zero},
    {"freed_in_graph", run_freed_in_graph, zero},
    {"captured_copy_from_host", run_captured_copy_from_host, zero},
    {"stream_without_wait", [](const Buffers& b) { run_two_streams(b, false); }, twice},
    {"captured_stream_without_wait", [](const Buffers& b) { run_two_streams_in_graph(b, false); }, twice},
    {"many_multiprocessors", run_many_multiprocessors, [](int i) { return i == 0 ? 127.0f * 64 : 0; }},
    {"much_shared_memory", run_much_shared_memory, itself},
    {"exact_functions", [](const Buffers& b) { launch("", exact_functions_kernel, block(128), b.out); },
     [](int i) { return static_cast<float>(i % 64); }},
    {"exact_log1p", [](const Buffers& b) { launch("", exact_log1p_kernel, block(Buffers::size), b.out); },
     [](int i) { return std::log1p(static_cast<float>(i)); }},
    {"inlined_twice", [](const Buffers& b) { launch("", inlined_twice_kernel, block(32), b.out); }, zero},
    {"called_twice", [](const Buffers& b) { launch("", called_twice_kernel, block(32), b.out); }, zero},
    {"matrix_in_global_memory",
     [](const Buffers& b) { launch("", matrix_in_global_memory_kernel, block(32), b.x, b.out); }, zero},
    {"misaligned_matrix",
     [](const Buffers& b) { launch("", misaligned_matrix_kernel, block(32, floats(80)), b.x, b.out); }, zero},
    {"matrix_without_barrier",
     [](const Buffers& b) { launch("", matrix_without_barrier_kernel, block(32, floats(128)), b.x, b.out); }, zero},
    {"mma_unrounded", [](const Buffers& b) { launch("", mma_unrounded_kernel, block(32), b.x, b.out); }, zero},
    {"order_of_k", run_order_of_k, [](int i) { return i == 0 ? 1.0f : 0; }},
    {"workspace_in_use", run_workspace_in_use, zero},
    {"small_workspace", run_small_workspace, zero},
    {"misaligned_operand", run_misaligned_operand, zero},
    {"control_sums", [](const Buffers& b) { launch("", sums_kernel, block(128, floats(32)), b.x, b.out); }, three_sums},
    {"control_mma", [](const Buffers& b) { launch("", mma_kernel, block(32, floats(128)), b.x, b.out); }, twice_if_odd},
    {"control_graph", run_graph, four_times},
    {"control_streams", [](const Buffers& b) { run_two_streams(b, true); }, twice},
    {"control_streams_in_graph", [](const Buffers& b) { run_two_streams_in_graph(b, true); }, twice},
    {"control_cublas", run_cublas, itself},
#if RUNNEL_WITH_NCCL
    {"captured_by_sender", [](const Buffers& b) { run_message(b, Issue::in_a_graph, Issue::directly); }, itself},
    {"captured_by_receiver", [](const Buffers& b) { run_message(b, Issue::directly, Issue::in_a_graph); }, itself},
    {"captured_again", [](const Buffers& b) { run_message(b, Issue::in_two_graphs, Issue::in_a_graph); }, itself},
    {"control_message", [](const Buffers& b) { run_message(b, Issue::directly, Issue::directly); }, itself},
    {"control_message_in_graph", [](const Buffers& b) { run_message(b, Issue::in_a_graph, Issue::in_a_graph); },
     itself},
#endif
};
