// runnel_plant <name>: runs one of plants.cu and says whether the result is right, wrong or nan.
#include <cmath>
#include <cstdio>
#include <exception>
#include <string_view>

#include "cuda/launch.h"
#include "tests/simt/plants.h"

namespace runnel::cuda {

cudaStream_t stream() {
  static const cudaStream_t only = [] {
    cudaStream_t created;
    check_cuda(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return created;
  }();
  return OnStream::current() ? OnStream::current() : only;
}

void check_cuda(cudaError_t status, const char* what) {
  check(status == cudaSuccess, what, ": ", cudaGetErrorString(status));
}

cudaEvent_t begin_timing() { return nullptr; }
void end_timing(const char*, cudaEvent_t) {}

}  // namespace runnel::cuda

namespace {

using runnel::cuda::check_cuda;
using runnel::cuda::stream;

float* allocate(size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMallocAsync(&memory, bytes, stream()), "cudaMallocAsync");
  return static_cast<float*>(memory);
}

const char* run(const Plant& plant) {
  float x[Buffers::size], out[Buffers::size];
  for (int i = 0; i < Buffers::size; ++i) x[i] = static_cast<float>(i);
  const Buffers buffers{allocate(sizeof x), allocate(sizeof out)};
  check_cuda(cudaMemcpyAsync(buffers.x, x, sizeof x, cudaMemcpyHostToDevice, stream()), "cudaMemcpyAsync");
  check_cuda(cudaMemsetAsync(buffers.out, 0, sizeof out, stream()), "cudaMemsetAsync");
  plant.run(buffers);
  check_cuda(cudaMemcpyAsync(out, buffers.out, sizeof out, cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  const char* verdict = "right";
  for (int i = 0; i < Buffers::size; ++i) {
    if (std::isnan(out[i])) return "nan";
    if (out[i] != plant.expected(i)) verdict = "wrong";
  }
  return verdict;
}

}  // namespace

int main(int count, char** words) try {
  for (const Plant& plant : plants)
    if (count == 2 && std::string_view(words[1]) == plant.name) {
      std::printf("result %s\n", run(plant));
      return 0;
    }
  std::fprintf(stderr, "usage: runnel_plant <name>\n");
  for (const Plant& plant : plants) std::fprintf(stderr, "  %s\n", plant.name);
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "runnel_plant: %s\n", error.what());
  return 1;
}
