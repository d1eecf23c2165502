// How long kernels take, by events: marks on the stream, whose time the GPU notes when it comes to them. The clock of
// the CPU would see only the launches, which return at once.
//
// launch() and product() are the only doors to the GPU. When kernels are timed, each sets a mark before and one after
// its kernel. If the GPU waited for the host, a kernel's launch would lie between the two and count as its time.
// Therefore the stream sleeps now and then, so that the host, which launches faster than kernels run, is ahead.
#include <chrono>
#include <thread>
#include <vector>

#include "cuda/launch.h"
#include "engine/cuda_backend.h"
#include "engine/profile.h"

namespace runnel::cuda {
namespace {

struct Timed {
  const char* name;
  cudaEvent_t begin, end;
};
std::vector<Timed> timed;                     // since the host last waited for the stream
auto& spare = *new std::vector<cudaEvent_t>;  // for the next marks; never destroyed: CUDA may be gone by then
constexpr size_t launches_between_sleeps = 256, max_timed = 4096;

cudaEvent_t mark() {
  cudaEvent_t event = nullptr;
  if (spare.empty()) {
    check_cuda(cudaEventCreate(&event), "cudaEventCreate");
  } else {
    event = spare.back();
    spare.pop_back();
  }
  check_cuda(cudaEventRecord(event, stream()), "cudaEventRecord");
  return event;
}

double seconds_between(cudaEvent_t begin, cudaEvent_t end) {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  spare.insert(spare.end(), {begin, end});
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace

cudaEvent_t begin_timing() {
  if (!timing_kernels()) return nullptr;
  if (timed.size() == max_timed) synchronize();
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(4)); };
  if (timed.size() % launches_between_sleeps == 0)
    check_cuda(cudaLaunchHostFunc(stream(), sleep, nullptr), "cudaLaunchHostFunc");
  return mark();
}

void end_timing(const char* name, cudaEvent_t begin) {
  if (begin) timed.push_back({name, begin, mark()});
}

void read_timings() {
  for (const Timed& kernel : timed)
    add_kernel_time(Device::cuda, kernel.name, seconds_between(kernel.begin, kernel.end));
  timed.clear();
}

double seconds(const std::function<void()>& work) {
  const cudaEvent_t begin = mark();
  work();
  const cudaEvent_t end = mark();
  synchronize();
  return seconds_between(begin, end);
}

}  // namespace runnel::cuda
