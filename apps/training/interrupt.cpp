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
  sigaction(SIGHUP, nullptr, &old_hup_);
  if (old_hup_.sa_handler != SIG_IGN) sigaction(SIGHUP, &note, nullptr);  // nohup has it ignored
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGHUP, &old_hup_, nullptr);
}

}  // namespace runnel
