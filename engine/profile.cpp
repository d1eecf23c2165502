#include "engine/profile.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace runnel {
namespace {

using Clock = std::chrono::steady_clock;

class Profile {
 public:
  void add(const std::string& kernel, Clock::time_point begin, Clock::time_point end) {
    const std::lock_guard lock(mutex_);
    if (kernels_.empty()) first_ = begin;
    last_ = end;
    ++kernels_[kernel].calls;
    kernels_[kernel].seconds += seconds(begin, end);
  }

  ~Profile() {
    if (kernels_.empty()) return;
    std::vector<std::pair<std::string, Kernel>> rows(kernels_.begin(), kernels_.end());
    const double all = seconds(first_, last_);
    Kernel rest{0, all};
    for (const auto& [name, kernel] : rows) rest.seconds -= kernel.seconds;
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    rows.emplace_back("outside of kernels", rest);
    std::fprintf(stderr, "%-40s %10s %10s %8s\n", "kernel", "calls", "seconds", "%");
    for (const auto& [name, kernel] : rows)
      std::fprintf(stderr, "%-40s %10ld %10.3f %8.1f\n", name.c_str(), kernel.calls, kernel.seconds,
                   100 * kernel.seconds / all);
  }

 private:
  struct Kernel {
    long calls = 0;
    double seconds = 0;
  };
  static double seconds(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
  }

  std::mutex mutex_;
  std::map<std::string, Kernel> kernels_;
  Clock::time_point first_, last_;
};

Profile* profile() {  // null: not wanted
  static const bool wanted = [] {
    const char* const wish = std::getenv("RUNNEL_PROFILE");
    return wish && *wish != '\0' && std::string(wish) != "0";
  }();
  if (!wanted) return nullptr;
  static Profile the_profile;
  return &the_profile;
}

}  // namespace

KernelTimer::KernelTimer(Device device, const char* call) : call_(device == Device::cpu && profile() ? call : nullptr) {
  if (call_) begin_ = Clock::now();
}

KernelTimer::~KernelTimer() {
  if (!call_) return;
  const std::string call = call_;
  profile()->add(call.substr(0, call.find('(')), begin_, Clock::now());
}

}  // namespace runnel
