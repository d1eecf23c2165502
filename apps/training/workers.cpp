#include "apps/training/workers.h"

#include <system_error>
#include <utility>

#include "engine/check.h"
#include "engine/threads.h"

namespace runnel {

Workers::Workers(int64_t count, int64_t team) : team_(team) {
  const auto serve = [this] {
    omp_set_num_threads(static_cast<int>(team_));
    std::unique_lock lock(mutex_);
    for (;;) {
      begun_.wait(lock, [this] { return stops_ || next_ < end_; });
      if (stops_) return;
      take_all(lock);
    }
  };
  threads_.reserve(static_cast<size_t>(count));
  try {
    for (int64_t i = 1; i < count; ++i) threads_.emplace_back(serve);
  } catch (const std::system_error& error) {
    stop();
    fail("the system started only ", threads_.size(), " of ", count - 1, " threads (", error.what(),
         "); give fewer --threads");
  }
}

void Workers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::take_all(std::unique_lock<std::mutex>& lock) {
  while (next_ < end_) {
    const int64_t i = next_++;
    ++busy_;
    lock.unlock();
    std::exception_ptr error;
    try {
      (*work_)(i);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --busy_;
    if (!error) continue;
    if (!error_) error_ = error;
    next_ = end_;
  }
  if (busy_ == 0) done_.notify_one();
}

void Workers::run(int64_t n, const std::function<void(int64_t)>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  next_ = 0;
  end_ = n;
  begun_.notify_all();
  const int all = omp_get_max_threads();
  omp_set_num_threads(static_cast<int>(team_));
  take_all(lock);
  omp_set_num_threads(all);
  done_.wait(lock, [this] { return busy_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace runnel
