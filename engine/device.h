// Which processors there are, and their names.
#pragma once
#include <string>

namespace runnel {

enum class Device { cpu, cuda };
const char* name(Device device);

// "" if the device can be used; else why not, as a sentence for the user.
std::string why_unavailable(Device device);
int cuda_devices();  // of this machine
// Which of the machine's GPUs Device::cuda is: 0, the first, unless this is called before anything is asked of it.
// Throws Error if another one is in use already.
void choose_cuda_device(int number);
std::string model_name(Device device);  // of the processor or GPU, as its maker calls it; of ARM the part number
#if RUNNEL_WITH_CUDA
constexpr bool with_cuda = true;  // in this build
#else
constexpr bool with_cuda = false;
#endif
// Whether Device::cuda is tests/simt, the emulator that runs CUDA kernels on the CPU, slowly.
bool cuda_is_emulated();
// Waits until the device has finished all work that it was given.
void synchronize(Device device);

}  // namespace runnel
