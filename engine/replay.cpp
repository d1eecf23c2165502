#include "engine/replay.h"

#include "engine/cuda_backend.h"
#include "engine/memory.h"
#include "engine/profile.h"

namespace runnel {

bool can_replay(Device device) { return device != Device::cpu && !timing_kernels(); }

void Replay::run() {
  if (!can_replay(device_) || !std::exchange(warm_, true)) return work_();
  if constexpr (with_cuda) {
    if (!graph_) {
      trim_memory(device_);  // frees the memory of the first run: the graph has its own
      graph_ = cuda::capture(work_);
    }
    cuda::launch_graph(graph_);
  }
}

Replay::~Replay() {
  if constexpr (with_cuda)
    if (graph_) cuda::destroy_graph(graph_);
}

}  // namespace runnel
