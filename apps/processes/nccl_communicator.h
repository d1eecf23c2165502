// Processes that have a GPU each, connected by NCCL, if this build has NCCL: cuda/processes/nccl_communicator.cu.
#pragma once
#include <memory>
#include <string>

#include "apps/training/communicator.h"

namespace runnel::cuda {

std::shared_ptr<Communicator> connect_gpus(std::shared_ptr<Communicator> launcher);
bool has_nccl();             // in this build, and on this machine
std::string nccl_version();  // "NCCL 2.28.9", or a missing part: "no NCCL" in this build, or "no libnccl.so.2"

}  // namespace runnel::cuda
