// Parallel loops that exceptions can leave: OpenMP itself ends the program where one leaves a parallel region.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace runnel::cpu {

// Keeps the first exception of any thread. Made before the region, asked after it.
class FirstError {
 public:
  template <class Work>
  void guard(const Work& work) {
    try {
      work();
    } catch (...) {
#pragma omp critical(runnel_first_error)
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

// Calls work(begin, end, thread) on thread 0, 1, ... for contiguous shares of [0, n), which differ by at most one and
// are never empty. Returns how many threads had a share. Without `parallel`, thread 0 does all. Inner loops belong in a
// function that gets its arguments by value: GCC does not vectorise well what it must load from a closure.
template <class Work>
int64_t parallel_shares(int64_t n, bool parallel, const Work& work) {
  int64_t shares = 0;
  FirstError error;
#pragma omp parallel if (parallel)
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t share = n / threads, rest = n % threads;
    const int64_t begin = thread * share + std::min(thread, rest), end = begin + share + (thread < rest ? 1 : 0);
    if (thread == 0) shares = std::min(n, threads);
    if (begin < end) error.guard([&] { work(begin, end, thread); });
  }
  error.rethrow();
  return shares;
}

}  // namespace runnel::cpu
