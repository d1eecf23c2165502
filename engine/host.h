// The resources of the machine that this process may use, which a container or a job's control groups (v1 and v2) can
// make less than the machine has. The functions read /proc and /sys below `root`.
#pragma once
#include <cstdint>
#include <string>

#include "engine/device.h"

namespace runnel {

// Bytes: of the machine (MemAvailable), or what the control groups leave if that is less.
int64_t available_memory(const std::string& root = "/");
// Cores whose time the smallest CPU quota of the control groups grants, rounded up; without a quota a number that no
// machine has.
int64_t quota_of_cores(const std::string& root = "/");

// Bytes that can still be allocated without swapping: free memory of the GPU, or available_memory(), and cached blocks.
int64_t free_memory(Device device);

}  // namespace runnel
