#include "engine/timing.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/cuda_backend.h"
#include "engine/profile.h"

namespace runnel {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

bool is_wanted() {
  static const bool wanted = [] {
    const char* const wish = std::getenv("RUNNEL_PROFILE");
    return wish && *wish != '\0' && std::string(wish) != "0";
  }();
  return wanted;
}

class Profile {
 public:
  void add(Device device, const std::string& kernel, double seconds) {
    const std::lock_guard lock(mutex_);
    const double now = Seconds(Clock::now().time_since_epoch()).count();
    threads_.try_emplace(std::this_thread::get_id(), now - seconds, now).first->second.second = now;
    if (device == Device::cuda) on_cuda_ = true;
    for (KernelTime* const time : {&kernels_[kernel], &all_}) ++time->calls, time->seconds += seconds;
  }

  KernelTime all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

  ~Profile() {
    if (kernels_.empty() || !is_wanted()) return;
    std::vector<std::pair<std::string, KernelTime>> rows(kernels_.begin(), kernels_.end());
    std::sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.second.seconds > b.second.seconds; });
    double wall = 0;
    for (const auto& [thread, time] : threads_) wall += time.second - time.first;
    const double whole = on_cuda_ ? all_.seconds : wall;
    // On CUDA the time between kernels would be that of timing them.
    rows.emplace_back(on_cuda_ ? std::pair{"all kernels", all_}
                               : std::pair{"outside of kernels, or idle", KernelTime{0, wall - all_.seconds}});
    std::fprintf(stderr, "%-40s      calls    seconds        %%    us/call\n",
                 threads_.size() > 1 ? "kernel (times of all threads together)" : "kernel");
    for (const auto& [name, time] : rows)
      std::fprintf(stderr, "%-40s %10ld %10.3f %8.1f %10.1f\n", name.c_str(), static_cast<long>(time.calls),
                   time.seconds, 100 * time.seconds / whole,
                   1e6 * time.seconds / static_cast<double>(std::max<int64_t>(time.calls, 1)));
  }

 private:
  std::mutex mutex_;
  std::map<std::string, KernelTime> kernels_;
  KernelTime all_;
  std::map<std::thread::id, std::pair<double, double>> threads_;  // when its first kernel began and its last one ended
  bool on_cuda_ = false;
};

Profile& profile() {
  static Profile the_profile;
  return the_profile;
}

std::atomic<int> callers_of_kernel_time = 0;

}  // namespace

bool timing_kernels() { return is_wanted() || callers_of_kernel_time > 0; }

void add_kernel_time(Device device, const char* call, double seconds) {
  const std::string text = call;
  profile().add(device, text.substr(0, text.find('(')), seconds);
}

KernelTime kernel_time(Device device, const std::function<void()>& work) {
  struct Caller {
    Caller() { ++callers_of_kernel_time; }
    ~Caller() { --callers_of_kernel_time; }
  };
  synchronize(device);  // on CUDA, the times of kernels are known after a wait
  const KernelTime before = profile().all();
  const Caller caller;
  work();
  synchronize(device);
  const KernelTime after = profile().all();
  return {after.calls - before.calls, after.seconds - before.seconds};
}

double device_seconds(Device device, const std::function<void()>& work) {
  if constexpr (with_cuda)
    if (device == Device::cuda) return cuda::seconds(work);
  const Clock::time_point begin = Clock::now();
  work();
  return Seconds(Clock::now() - begin).count();
}

}  // namespace runnel
