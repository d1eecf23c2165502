// What is printed while something runs: lines that a terminal writes over, and that may fail without harm.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace runnel {

// Whether a descriptor is a terminal that understands escape sequences, and TERM=dumb or NO_COLOR do not forbid them.
bool is_terminal(int descriptor);
int64_t terminal_columns(int descriptor);  // 80 if it does not say

// Prints and flushes. What cannot be printed is dropped: progress is not worth a run.
void say(FILE* stream, const std::string& text);

// A line on stderr that is written over, at most ten times a second, with the share done and the time left. Nothing
// if stderr is no terminal.
class Progress {
 public:
  explicit Progress(const char* what) : what_(what) {}
  void operator()(int64_t done, int64_t total) const;

 private:
  using Clock = std::chrono::steady_clock;
  const char* what_;
  Clock::time_point begun_ = Clock::now();
  mutable Clock::time_point shown_ = {};
};

std::string duration_text(double seconds);  // "12 s", "5 min", "1.5 h", "3.0 days"

// A word of a command line that a shell reads as it is.
std::string shell_quoted(const std::string& word);

}  // namespace runnel
