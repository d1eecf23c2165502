// Progress: lines that a terminal writes over. Write errors are ignored.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace runnel {

// Whether a descriptor is a terminal that understands escape sequences, TERM=dumb or NO_COLOR do not forbid them, and
// no launcher stands between.
bool is_terminal(int descriptor);
int64_t terminal_columns(int descriptor);  // 80 if it does not say

void set_quiet(bool quiet);  // --quiet: results, warnings and errors only

void say(const std::string& text);          // how something goes on, to stdout; nothing with --quiet
void warn(const std::string& text);         // to stderr
void say_escapes(const std::string& text);  // say() of escape sequences, which say() shows as text
inline const std::string erased_line = "\r\x1b[K";

// A line on stderr with the share done and the time left: it appears after a second, is written over at most ten times
// a second, and is erased at the end. Nothing with --quiet, or if stderr is no terminal.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  void operator()(int64_t done, int64_t total) const;
  void erase() const;  // before something else is printed

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  Clock::time_point begun_ = Clock::now();
  mutable Clock::time_point shown_ = {};
};

std::string duration_text(double seconds);  // "12 s", "5 min", "1.5 h", "3.0 days"

// A word of a command line that a shell reads as it is.
std::string shell_quoted(const std::string& word);

}  // namespace runnel
