// The engine's back end on CUDA (engine/cuda_backend.h): memory, copies, graphs and the stream of the one GPU in use.
//
// All work is put on one stream, so it is done in the order of its launches and nothing needs to wait: memory that is
// released goes back to the pool (cudaMallocAsync's) when the kernels before it are done with it, and its next owner's
// kernels come later on the same stream.
#include <functional>
#include <string>

#include "cuda/launch.h"
#include "engine/cuda_backend.h"

namespace runnel::cuda {
namespace {

// The device is opened when something is first asked of it, and stays open.
struct Gpu {
  std::string problem;  // why there is none
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
  int device = 0, multiprocessors = 0, shared_memory = 0;

  Gpu() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0) {
      problem = std::string("no CUDA device found") +
                (status == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(status) + ")") +
                "; compute on the CPU with --device cpu";
      return;
    }
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
    check_cuda(cudaDeviceGetAttribute(&shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute");
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
    uint64_t keep = UINT64_MAX;  // the pool gives nothing back between steps
    check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
  }
};

const Gpu& gpu() {
  static const Gpu the_gpu;
  check(the_gpu.problem.empty(), the_gpu.problem);
  return the_gpu;
}

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  check(status == cudaSuccess, what, ": ", cudaGetErrorString(status));
}

std::string model_name() {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, gpu().device), "cudaGetDeviceProperties");
  return properties.name;
}

cudaStream_t stream() { return gpu().stream; }
int64_t multiprocessors() { return gpu().multiprocessors; }
size_t shared_memory() { return static_cast<size_t>(gpu().shared_memory); }

std::string why_unavailable() {
  try {
    gpu();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

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

void synchronize() { check_cuda(cudaStreamSynchronize(stream()), "the kernels before"); }

int64_t free_memory() {
  size_t free = 0, total = 0;
  uint64_t reserved = 0, used = 0;  // by the pool, from which released memory does not go back
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  check_cuda(cudaMemPoolGetAttribute(gpu().pool, cudaMemPoolAttrReservedMemCurrent, &reserved),
             "cudaMemPoolGetAttribute");
  check_cuda(cudaMemPoolGetAttribute(gpu().pool, cudaMemPoolAttrUsedMemCurrent, &used), "cudaMemPoolGetAttribute");
  return static_cast<int64_t>(free + reserved - used);
}

void trim_memory() {
  synchronize();  // what is released on the stream is then free
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

void destroy_graph(void* graph) { static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph))); }

}  // namespace runnel::cuda
