#include "apps/cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

namespace runnel {
namespace {

int output_error = 0;  // errno of the first write to standard output that failed
bool is_dropped = false;
int text_descriptor = STDOUT_FILENO, output_descriptor = STDOUT_FILENO, error_descriptor = STDERR_FILENO;

// Claims to have written everything: {fmt} throws if a stream fails, which would end a run for a line of progress.
ssize_t write_or_drop(void* descriptor, const char* bytes, size_t size) {
  const int fd = *static_cast<const int*>(descriptor);
  for (size_t done = is_dropped ? size : 0; done < size;) {
    const ssize_t written = write(fd, bytes + done, size - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {  // another program made the terminal non-blocking
      usleep(1000);
    } else if (errno != EINTR) {
      if (fd == STDOUT_FILENO && output_error == 0) output_error = errno;
      break;
    }
  }
  return static_cast<ssize_t>(size);
}

FILE* stream_to(int& descriptor, int buffering) {
  cookie_io_functions_t functions{};
  functions.write = write_or_drop;
  FILE* const stream = fopencookie(&descriptor, "w", functions);
  if (stream) setvbuf(stream, nullptr, buffering, BUFSIZ);
  return stream;
}

}  // namespace

void prepare_output() {
  // Those of standard output cannot be written to, so that main says that it was closed.
  const int modes[] = {O_RDONLY, O_RDONLY, O_WRONLY};
  for (int fd = 0; fd < 3; ++fd)
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", modes[fd]);  // the lowest free number, which is fd
  std::signal(SIGPIPE, SIG_IGN);
  if (FILE* const out = stream_to(text_descriptor, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF)) stdout = out;
  if (FILE* const err = stream_to(error_descriptor, _IONBF)) stderr = err;
}

void drop_output(bool drop) {
  std::fflush(stdout);
  is_dropped = drop;
}

std::string output_problem() {
  std::fflush(stdout);
  if (output_error == 0 || output_error == EPIPE) return "";
  return std::string("cannot write to standard output: ") + std::strerror(output_error);
}

void print_text_to_stderr() {
  std::fflush(stdout);
  text_descriptor = error_descriptor;
}

void print_json(const nlohmann::json& object) {
  const std::string text = object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  write_or_drop(&output_descriptor, text.data(), text.size());
}

}  // namespace runnel
