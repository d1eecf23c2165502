// Where numbers live and who computes on them: memory with byte counters, copies, and the two macros by which
// one kernel signature becomes a CPU and a CUDA function. This is the only place that knows RUNNEL_WITH_CUDA.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace runnel {

enum class Device { cpu, cuda };
const char* name(Device device);

// Uninitialised memory, aligned to 64 bytes. Throws Error when there is none left, or no such device.
void* allocate(size_t bytes, Device device);
void release(void* memory, size_t bytes, Device device);

// A copy to the host waits for what it reads; others are done when what is asked of the device next needs them.
void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes);
// Waits until the device has done everything that it was asked to.
void synchronize(Device device);
// "" if there is such a device; else why not, as a sentence for the user.
std::string why_unavailable(Device device);
std::string model_name(Device device);  // of the processor or the GPU, as its maker calls it
// Whether Device::cuda is tests/simt, which runs the kernels on the CPU, slowly.
bool cuda_is_stand_in();

// Something that is asked of a device again and again in the same way. On CUDA it is captured as a graph, which costs
// one launch; it may then use no memory that it has not allocated itself or that does not outlive the Repeated, and its
// host code runs twice only. On the CPU it is called.
class Repeated {
 public:
  Repeated(Device device, std::function<void()> work) : device_(device), work_(std::move(work)) {}
  ~Repeated();
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  void run();

 private:
  Device device_;
  std::function<void()> work_;
  bool warm_ = false;      // the first run is not captured: libraries set themselves up in it
  void* graph_ = nullptr;  // cudaGraphExec_t
};

// Bytes held by living tensors; what the pool keeps for reuse does not count.
struct MemoryUse {
  int64_t live;
  int64_t peak;  // largest `live` since the last reset_peak
};
MemoryUse memory_use(Device device);
int64_t free_memory(Device device);  // bytes that nobody uses, of the machine or of the GPU
void reset_peak(Device device);

// What the matrix products of models round their operands to; they always add up in float32. tf32 (10 bits of mantissa
// instead of 23) is CUDA's: to the CPU it is f32. Set it before the first product. Throws Error if bf16 is asked for on
// the CPU and this processor cannot multiply it at speed.
enum class Precision { f32, tf32, bf16 };
bool has_bf16();
void set_precision(Precision precision, Device device = Device::cpu);
Precision precision();

// From now on the CPU takes numbers below 1e-38 for 0, in this thread and those that it starts. To compute with them
// takes a processor many times as long, and heads that look sharply make many: all features e^x that do not look.
void flush_denormals();

}  // namespace runnel

// KERNEL(scale_forward(float* y, const float* x, float s, int64_t n)) declares runnel::cpu::scale_forward and
// runnel::cuda::scale_forward. DISPATCH(device, scale_forward(y, x, s, n)) calls the one that `device` names. Without
// CUDA the second is declared and never named, so nothing has to be stubbed.
#define KERNEL(...) \
  namespace cpu {   \
  void __VA_ARGS__; \
  }                 \
  namespace cuda {  \
  void __VA_ARGS__; \
  }

// What cuda/device.cu does for allocate and its like.
namespace runnel::cuda {
std::string why_unavailable();
std::string model_name();
void* allocate(size_t bytes);  // null if there is no more memory
void release(void* memory);
void copy(void* to, const void* from, size_t bytes, bool to_host);
void synchronize();
int64_t free_memory();
void* capture(const std::function<void()>& work);  // a graph that is ready to launch
void launch_graph(void* graph);
void destroy_graph(void* graph);
}  // namespace runnel::cuda

#if RUNNEL_WITH_CUDA
#define DISPATCH(device, ...) ((device) == ::runnel::Device::cpu ? cpu::__VA_ARGS__ : cuda::__VA_ARGS__)
#else
#define DISPATCH(device, ...) (static_cast<void>(device), cpu::__VA_ARGS__)
#endif

namespace runnel {

// y = a + b, the one kernel that the engine itself needs: a tensor used twice gets the sum of two gradients.
KERNEL(add(float* y, const float* a, const float* b, int64_t n))

}  // namespace runnel
