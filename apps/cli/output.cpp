#include "apps/cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/text.h"

namespace runnel {
namespace {

int output_error = 0;  // errno of the first write to standard output that failed
bool is_dropped = false;
bool prints_escapes = false;  // in print_escapes

struct Stream {
  int descriptor;
  std::string begun = {};  // the first bytes of a character whose others follow
};
Stream text_stream{STDOUT_FILENO}, error_stream{STDERR_FILENO};

void write_or_drop(int fd, std::string_view text) {
  while (!text.empty() && !is_dropped) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // another program made the terminal non-blocking
      usleep(1000);
    } else if (errno != EINTR) {
      if (fd == STDOUT_FILENO && output_error == 0) output_error = errno;
      break;
    }
  }
}

// How many bytes of a text are whole characters, if it is UTF-8.
size_t whole_characters(std::string_view text) {
  for (size_t i = text.size(); i > 0 && text.size() - i < 3; --i) {
    const auto byte = static_cast<unsigned char>(text[i - 1]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return i - 1 + length > text.size() ? i - 1 : text.size();
  }
  return text.size();
}

// Names that came from outside may stand in whatever is printed, and no escape sequence of theirs reaches a terminal.
// Claims to have written everything: {fmt} throws if a stream fails, which would end a run for a line of progress.
ssize_t write_shown(void* cookie, const char* bytes, size_t size) {
  Stream& stream = *static_cast<Stream*>(cookie);
  std::string text = std::exchange(stream.begun, "") + std::string(bytes, size);
  if (!prints_escapes) {
    const size_t whole = whole_characters(text);
    stream.begun = text.substr(whole);
    text = shown(std::string_view(text).substr(0, whole), Lines::kept);
  }
  write_or_drop(stream.descriptor, text);
  return static_cast<ssize_t>(size);
}

FILE* stream_to(Stream& to, int buffering) {
#if defined(__APPLE__)
  const auto write = [](void* cookie, const char* bytes, int size) {
    return static_cast<int>(write_shown(cookie, bytes, static_cast<size_t>(size)));
  };
  FILE* const stream = funopen(&to, nullptr, write, nullptr, nullptr);
#else
  cookie_io_functions_t functions{};
  functions.write = write_shown;
  FILE* const stream = fopencookie(&to, "w", functions);
#endif
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
  if (FILE* const out = stream_to(text_stream, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF)) stdout = out;
  if (FILE* const err = stream_to(error_stream, _IONBF)) stderr = err;
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

bool output_is_wanted() { return output_error == 0; }

void print_text_to_stderr() {
  std::fflush(stdout);
  text_stream.descriptor = STDERR_FILENO;
}

void print_json(const nlohmann::json& object) {
  const auto text = [&](bool ascii) {
    return object.dump(2, ' ', ascii, nlohmann::json::error_handler_t::replace) + "\n";
  };
  const std::string readable = text(false);
  write_or_drop(STDOUT_FILENO, readable == shown(readable, Lines::kept) ? readable : text(true));
}

void print_escapes(FILE* stream, const std::string& text) {
  std::fflush(stream);
  prints_escapes = true;
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
  prints_escapes = false;
}

}  // namespace runnel
