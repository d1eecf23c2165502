// Threads that compute the parts of a batch side by side: data parallelism within a process.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

namespace runnel {

// The thread that calls run() is one of them. Each has a team of its own: the threads that share the loops of its
// kernels. So only threads of one team wait for each other, and none does where a team is one thread.
class Workers {
 public:
  // `team` threads for each. Throws Error if the system does not start as many.
  Workers(int64_t count, int64_t team);
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  int64_t count() const { return std::ssize(threads_) + 1; }
  int64_t team() const { return team_; }

  // work(i) for each i < n, by any of the workers. After an exception no more is begun, and the first is rethrown when
  // all are done.
  void run(int64_t n, const std::function<void(int64_t i)>& work);

 private:
  void take_all(std::unique_lock<std::mutex>& lock);
  void stop();

  const int64_t team_;
  std::mutex mutex_;  // of what follows
  std::condition_variable begun_, done_;
  const std::function<void(int64_t)>* work_ = nullptr;
  int64_t next_ = 0, end_ = 0, busy_ = 0;
  std::exception_ptr error_;
  bool stops_ = false;
  std::vector<std::thread> threads_;  // all but the one that calls run()
};

}  // namespace runnel
