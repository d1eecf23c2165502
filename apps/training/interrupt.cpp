#include "apps/training/interrupt.h"

namespace runnel {
namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

bool is_interrupted() { return interrupted != 0; }

void stop_if_interrupted() {
  if (interrupted) throw Interrupted();
}

InterruptGuard::InterruptGuard() {
  interrupted = 0;
  struct sigaction note {};
  note.sa_handler = [](int) { interrupted = 1; };
  note.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &note, &old_int_);
  sigaction(SIGTERM, &note, &old_term_);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
}

}  // namespace runnel
