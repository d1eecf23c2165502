// The engine's back end on CUDA (engine/cuda_backend.h): memory, copies, graphs and the stream of the one GPU in use.
//
// All work but messages (cuda/processes/nccl_communicator.cu) is put on one stream, so it is done in the order of its
// launches and nothing needs to wait: memory that is released goes back to the pool (cudaMallocAsync's) when the
// kernels before it are done with it, and its next owner's kernels come later on the same stream.
#include <functional>
#include <string>

#include "cuda/map.h"
#include "engine/cuda_backend.h"

namespace runnel::cuda {
namespace {

// Launch: over_fours(n). Owns: y[i]. Shared: none.
__global__ void fill_kernel(float* y, float value, int64_t n) {
  map(y, n, [value] { return value; });
}

__global__ void accumulate_kernel(float* y, const float* a, const float* b, int64_t n) {
  map(
      y, n, [](float ai, float bi) { return ai + bi; }, Elements{a}, Elements{b});
}

__device__ float rounded_to_bf16(float x) { return __uint_as_float(uint32_t{to_bf16(x)} << 16); }

__global__ void accumulate_bf16_kernel(float* y, const float* a, const float* b, int64_t n) {
  if (b)
    map(
        y, n, [](float ai, float bi) { return rounded_to_bf16(ai + bi); }, Elements{a}, Elements{b});
  else
    map(
        y, n, [](float ai) { return rounded_to_bf16(ai); }, Elements{a});
}

int chosen = 0;       // which device
bool opened = false;  // then `chosen` stays

std::string name_of(int device) {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties.name;
}

void check_supported(int device) {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(fill_kernel));
  check(status != cudaErrorNoKernelImageForDevice && status != cudaErrorUnsupportedPtxVersion, properties.name,
        " has compute capability ", properties.major, ".", properties.minor,
        ", for which this build has no kernels; build with -DCMAKE_CUDA_ARCHITECTURES=", properties.major,
        properties.minor);
  check_cuda(status, "cudaFuncGetAttributes");
}

// A virtual GPU has pools only if it is all of a GPU and the hypervisor grants it unified memory; if not, the attribute
// says so, or only the first allocation.
void check_has_pools(int device, cudaStream_t stream) {
  int has_pools = 0;
  check_cuda(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device), "cudaDeviceGetAttribute");
  void* memory = nullptr;
  const cudaError_t status = has_pools ? cudaMallocAsync(&memory, 1, stream) : cudaErrorNotSupported;
  check(status != cudaErrorNotSupported, name_of(device),
        " has no memory pools (cudaMallocAsync): update the driver; in a virtual machine, use a whole GPU, passed "
        "through or as a vGPU with unified memory enabled");
  static_cast<void>(status == cudaSuccess ? cudaFreeAsync(memory, stream) : cudaGetLastError());
}

// The device is opened when something is first asked of it, and stays open.
struct Gpu {
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
  int device = chosen, multiprocessors = 0, shared_memory = 0;

  Gpu() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    check(status == cudaSuccess && count > 0, "no CUDA device found",
          status == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(status) + ")");
    check(device < count, "there is no CUDA device ", device, " among the ", count,
          " of this machine, which count from 0");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");  // fails if another process has it for itself
    check_supported(device);
    check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
    check_cuda(cudaDeviceGetAttribute(&shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute");
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check_has_pools(device, stream);
    check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
    uint64_t keep = UINT64_MAX;  // the pool gives nothing back between steps
    check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
    opened = true;
  }
};

const Gpu& gpu() {
  static const Gpu the_gpu;
  return the_gpu;
}

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const bool is_lost = opened && cudaFree(nullptr) != cudaSuccess;  // whatever is called, if a kernel or the GPU failed
  fail(what, ": ", cudaGetErrorString(status),
       is_lost ? "; this process has lost the GPU, but no checkpoint: start again with --resume, on a GPU or with "
                 "--device cpu --precision f32"
               : "");
}

std::string model_name() { return name_of(gpu().device); }

cudaStream_t stream() { return OnStream::current() ? OnStream::current() : gpu().stream; }
int64_t multiprocessors() { return gpu().multiprocessors; }
size_t shared_memory() { return static_cast<size_t>(gpu().shared_memory); }

std::string why_unavailable() {
  try {
    gpu();
    return "";
  } catch (const Error& error) {
    static_cast<void>(cudaGetLastError());
    return error.what() + std::string("; compute on the CPU with --device cpu");
  }
}

int devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void choose_device(int number) {
  check(!opened || number == chosen, "CUDA device ", chosen, " is in use already; it cannot be changed to ", number);
  chosen = number;
}

void accumulate(float* y, const float* a, const float* b, int64_t n) {
  launch("accumulate", accumulate_kernel, over_fours(n), y, a, b, n);
}

void accumulate_bf16(float* y, const float* a, const float* b, int64_t n) {
  launch("accumulate_bf16", accumulate_bf16_kernel, over_fours(n), y, a, b, n);
}

void fill(float* y, float value, int64_t n) { launch("fill", fill_kernel, over_fours(n), y, value, n); }

void* allocate(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, bytes ? bytes : 1, stream());
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // the result reports it; the next launch must not report it again
    return nullptr;
  }
  check_cuda(status, "cudaMallocAsync");
  return memory;
}

// The last tensors may go when the driver is already shut down; then there is nothing to release.
void release(void* memory) { static_cast<void>(cudaFreeAsync(memory, stream())); }

void copy(void* to, const void* from, size_t bytes, bool to_host) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "copy");
  if (to_host) synchronize();
}

void synchronize() {
  check_cuda(cudaStreamSynchronize(stream()), "the kernels before");
  read_timings();
}

namespace {

int64_t kept_by_pool() {  // released memory does not go back from it
  uint64_t reserved = 0, used = 0;
  check_cuda(cudaMemPoolGetAttribute(gpu().pool, cudaMemPoolAttrReservedMemCurrent, &reserved),
             "cudaMemPoolGetAttribute");
  check_cuda(cudaMemPoolGetAttribute(gpu().pool, cudaMemPoolAttrUsedMemCurrent, &used), "cudaMemPoolGetAttribute");
  return static_cast<int64_t>(reserved - used);
}

}  // namespace

int64_t free_memory() {
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free) + kept_by_pool();
}

int64_t cached_memory() {
  uint64_t reserved = 0, used = 0;
  check_cuda(cudaDeviceGetGraphMemAttribute(gpu().device, cudaGraphMemAttrReservedMemCurrent, &reserved),
             "cudaDeviceGetGraphMemAttribute");
  check_cuda(cudaDeviceGetGraphMemAttribute(gpu().device, cudaGraphMemAttrUsedMemCurrent, &used),
             "cudaDeviceGetGraphMemAttribute");
  return kept_by_pool() + static_cast<int64_t>(reserved - used);
}

void trim_memory() {
  synchronize();  // memory released on the stream is then free
  check_cuda(cudaMemPoolTrimTo(gpu().pool, 0), "cudaMemPoolTrimTo");
}

void* capture(const std::function<void()>& work) {
  check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "capturing a graph");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  try {
    work();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream(), &graph));
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream(), &graph), "capturing a graph");
  const cudaError_t status = cudaGraphInstantiate(&ready, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  check_cuda(status, "cudaGraphInstantiate");
  return ready;
}

void launch_graph(void* graph) {
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream()), "cudaGraphLaunch");
}

void destroy_graph(void* graph) {
  static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
  static_cast<void>(cudaDeviceGraphMemTrim(gpu().device));  // else the graph's memory stays reserved for graphs
}

}  // namespace runnel::cuda
