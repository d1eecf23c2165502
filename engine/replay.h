// Fixed work that is done many times.
#pragma once
#include <functional>
#include <utility>

#include "engine/device.h"

namespace runnel {

// Whether work is captured there: on CUDA, unless kernels are timed one by one (engine/profile.h).
bool can_replay(Device device);

// On CUDA the work is captured as a graph, so that all of its kernels cost one launch. The work may then use only
// memory that it allocates itself or that outlives the Replay, and its host code runs no more than twice: it
// is called by the first run() and captured in the second. Where that cannot be, each run() calls it.
class Replay {
 public:
  Replay(Device device, std::function<void()> work) : device_(device), work_(std::move(work)) {}
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  void run();

 private:
  Device device_;
  std::function<void()> work_;
  bool warm_ = false;      // the first run is not captured: libraries initialise themselves in it
  void* graph_ = nullptr;  // cudaGraphExec_t
};

}  // namespace runnel
