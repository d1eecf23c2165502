#include "ops/helpers.h"

#include <atomic>
#include <exception>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "engine/memory.h"
#include "engine/threads.h"
#include "ops/cpu/loops.h"

namespace runnel {
namespace {

class Helpers;
thread_local Helpers* helpers_of_this_thread = nullptr;

void wait_an_instant() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

// Whether it is_ready() within so many instants, of some ten nanoseconds each. Waking a thread that sleeps takes longer
// than a loop.
template <class Ready>
bool is_soon(int64_t instants, const Ready& is_ready) {
  for (; instants > 0; --instants) {
    if (is_ready()) return true;
    wait_an_instant();
  }
  return false;
}

// A loop is cut into as many shares as there are threads. Its owner computes the first; each of the others is taken by
// a helper or, where other programs keep the helpers from running, by the owner.
class Helpers {
 public:
  explicit Helpers(int64_t threads) : threads_(threads) {}

  void run(LoopShare share, const void* loop) noexcept {
    helpers_of_this_thread = nullptr;  // loops within the share are not shared
    share_ = share;
    loop_ = loop;
    next_.fetch_add(1, std::memory_order_release);
    next_.notify_all();
    share(loop, 0, threads_);
    to_finish_ += threads_ - 1;
    constexpr int64_t few = 200;  // some microseconds: most shares take less
    while (!is_soon(few, [&] { return finished_.load(std::memory_order_acquire) == to_finish_; }))
      if (!take_share()) std::this_thread::yield();
    helpers_of_this_thread = this;
  }
  void end() {
    next_.store(ended);
    next_.notify_all();
  }

  void serve() {
    for (;;) {
      if (take_share()) continue;
      const int64_t seen = next_.load(std::memory_order_acquire);
      if (seen == ended) return;
      constexpr int64_t many = 2000;  // as many as apps/cli/waiting.cpp lets OpenMP's threads wait
      const auto is_next = [&] { return can_take(seen) || next_.load(std::memory_order_relaxed) != seen; };
      if (!is_soon(many, is_next)) next_.wait(seen);
    }
  }

 private:
  static constexpr int64_t ended = -1;

  bool can_take(int64_t next) const { return next % threads_ > 0; }
  bool take_share() {
    int64_t taken = next_.load(std::memory_order_acquire);
    if (!can_take(taken) || !next_.compare_exchange_strong(taken, taken + 1)) return false;
    share_(loop_, taken % threads_, threads_);
    finished_.fetch_add(1, std::memory_order_release);
    return true;
  }

  const int64_t threads_;
  LoopShare share_ = nullptr;
  const void* loop_ = nullptr;
  int64_t to_finish_ = 0;         // shares of all loops, but the first of each
  std::atomic<int64_t> next_{0};  // shares begun, of all loops; a multiple of threads_ where no loop is under way
  alignas(128) std::atomic<int64_t> finished_{0};  // of to_finish_; in a cache line of its own
};

}  // namespace

bool has_helpers() { return helpers_of_this_thread != nullptr; }
void run_with_helpers(LoopShare share, const void* loop) { helpers_of_this_thread->run(share, loop); }

void with_helpers(const std::function<void()>& work) {
  const int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (threads == 1 || has_helpers()) return work();
  // A thread's first allocation makes all of its workers flush subnormals: within the region it would reach none.
  release(allocate(1, Device::cpu), 1, Device::cpu);
  Helpers helpers(threads);
  std::exception_ptr error;
#pragma omp parallel num_threads(threads)
  if (omp_get_thread_num() > 0) {
    helpers.serve();
  } else {
    omp_set_num_threads(threads);  // of loops within, whatever OMP_NUM_THREADS has for nested regions
    helpers_of_this_thread = &helpers;
    try {
      work();
    } catch (...) {  // must not leave the parallel region
      error = std::current_exception();
    }
    helpers_of_this_thread = nullptr;
    helpers.end();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace runnel
