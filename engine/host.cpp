#include "engine/host.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include "engine/cuda_backend.h"
#include "engine/memory.h"

namespace runnel {
namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

// The number after `name` in a file of lines "name: number unit"; with an empty name, that with which the file begins.
int64_t number_in(const std::string& path, const std::string& name, int64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  while (!name.empty() && file >> word && word != name) {
  }
  int64_t number = 0;
  return file >> number ? number : otherwise;
}

struct Group {
  std::string folder;
  bool v2;
};
// The control groups of this process that may have this controller, and those above them.
std::vector<Group> groups_of(const std::string& controller, const std::string& root) {
  std::vector<Group> groups;
  std::ifstream file(root + "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:cpu,memory:/path" (v1), "0::/path" (v2)
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    for (std::string group = line.substr(second + 1);; group.resize(group.rfind('/'))) {
      groups.push_back({root + "sys/fs/cgroup" + (v2 ? "" : "/" + controller) + group + "/", v2});
      if (group.find('/') == std::string::npos) break;
    }
  }
  return groups;
}

}  // namespace

int64_t available_memory(const std::string& root) {
  const int64_t all = sysconf(_SC_PHYS_PAGES) * (sysconf(_SC_PAGESIZE) >> 10);  // KiB; macOS has no /proc/meminfo
  int64_t available = number_in(root + "proc/meminfo", "MemAvailable:", all) << 10;
  for (const Group& group : groups_of("memory", root)) {
    const int64_t allowed =
        number_in(group.folder + (group.v2 ? "memory.max" : "memory.limit_in_bytes"), "", unlimited);
    if (allowed >= int64_t{1} << 60) continue;  // v1 says "unlimited" by a number near 2^63
    const int64_t used = number_in(group.folder + (group.v2 ? "memory.current" : "memory.usage_in_bytes"), "", 0);
    // limit - usage + reclaimable page cache
    const int64_t inactive =
        number_in(group.folder + "memory.stat", group.v2 ? "inactive_file" : "total_inactive_file", 0);
    available = std::min(available, std::max<int64_t>(allowed - used + inactive, 0));
  }
  return available;
}

int64_t quota_of_cores(const std::string& root) {
  int64_t cores = unlimited;
  for (const Group& group : groups_of("cpu", root)) {
    std::ifstream file(group.folder + (group.v2 ? "cpu.max" : "cpu.cfs_quota_us"));
    int64_t quota = 0, period = 0;  // microseconds; without a quota "max" (v2) or -1 (v1)
    file >> quota;
    if (group.v2)
      file >> period;
    else
      period = number_in(group.folder + "cpu.cfs_period_us", "", 0);
    if (quota > 0 && period > 0) cores = std::min(cores, (quota + period - 1) / period);
  }
  return cores;
}

int64_t free_memory(Device device) {
  if constexpr (with_cuda)
    if (device == Device::cuda) return cuda::free_memory();
  return available_memory() + memory_use(device).cached;
}

}  // namespace runnel
