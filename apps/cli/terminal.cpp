#include "apps/cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "apps/cli/output.h"
#include "apps/training/communicator.h"

namespace runnel {
namespace {

bool quiet = false;

void print(FILE* stream, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace

bool is_terminal(int descriptor) {
  const char *const term = std::getenv("TERM"), *const no_color = std::getenv("NO_COLOR");
  if (processes().are_launched()) return false;  // mpirun gives each process one, even where its own output is a file
  return isatty(descriptor) && !(term && std::string(term) == "dumb") && !(no_color && *no_color);
}

int64_t terminal_columns(int descriptor) {
  winsize window{};
  return ioctl(descriptor, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
}

void set_quiet(bool value) { quiet = value; }

void say(const std::string& text) {
  if (!quiet) print(stdout, text);
}

void warn(const std::string& text) { print(stderr, text); }

void say_escapes(const std::string& text) {
  if (!quiet) print_escapes(stdout, text);
}

void Progress::operator()(int64_t done, int64_t total) const {
  const Clock::time_point now = Clock::now();
  if (quiet || now - begun_ < std::chrono::seconds(1) || !is_terminal(STDERR_FILENO)) return;
  if (done == total) return erase();
  if (now - shown_ < std::chrono::milliseconds(100)) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  const double left = seconds * static_cast<double>(total - done) / static_cast<double>(std::max<int64_t>(done, 1));
  std::string line =
      fmt::format("{} {} of {} ({}%), {} left", what_, done, total, 100 * done / total, duration_text(left));
  line.resize(std::min(line.size(), static_cast<size_t>(terminal_columns(STDERR_FILENO) - 1)));
  print_escapes(stderr, erased_line);
  warn(line);
}

void Progress::erase() const {
  if (std::exchange(shown_, {}) != Clock::time_point()) print_escapes(stderr, erased_line);
}

std::string duration_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  const double minutes = seconds / 60;
  if (minutes < 100) return fmt::format("{:.0f} min", minutes);
  return minutes < 48 * 60 ? fmt::format("{:.1f} h", minutes / 60) : fmt::format("{:.1f} days", minutes / 60 / 24);
}

std::string shell_quoted(const std::string& word) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string("_./-+=:,@%").find(c) != std::string::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace runnel
