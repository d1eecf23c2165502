// Errors. Everything that can be wrong with what a user gave ends as one sentence in an exception; `main` prints it.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace runnel {

// Something failed: a shape, a file, the memory, the loss. The program exits with status 1. The sentence is kept as one
// printable line (shown() in engine/text.h), since names in it may come from anybody.
struct Error : std::runtime_error {
  explicit Error(const std::string& sentence);
};

// The command line asks for the impossible. The program exits with status 2.
struct UsageError : Error {
  using Error::Error;
};

template <class E = Error, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw E(text.str());
}

// check(k.shape() == q.shape(), "linear_attention: k ", k.shape(), " does not match q ", q.shape());
template <class E = Error, class... Parts>
void check(bool holds, const Parts&... parts) {
  if (!holds) fail<E>(parts...);
}

}  // namespace runnel
