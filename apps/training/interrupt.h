// Ctrl-C, SIGTERM, and SIGHUP of a terminal that closes: the first one asks the training loop to save and leave, a
// second one ends the program as usual.
#pragma once
#include <csignal>

namespace runnel {

struct Interrupted {};  // thrown by stop_if_interrupted

bool is_interrupted();
void stop_if_interrupted();

// While it lives, the first signal is only noted.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction old_int_, old_term_, old_hup_;
};

}  // namespace runnel
