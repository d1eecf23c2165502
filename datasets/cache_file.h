// Results that took long to compute, in a file: a line that says what they are, their bytes, and the CRC-32 of both.
#pragma once
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/check.h"

namespace runnel {

template <class T>
std::span<const char> as_chars(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The bytes of results: numbers as they are in memory, arrays with their sizes before them. The same code writes and
// reads. When it reads, all of it throws Error if fewer bytes are left, before any memory is taken for them; whether
// the numbers can be is for the caller to check.
class Archive {
 public:
  Archive() = default;                                                             // to write
  explicit Archive(std::string bytes) : reads_(true), bytes_(std::move(bytes)) {}  // to read

  template <class T>
  void number(T& value) {
    numbers(std::span(&value, 1));
  }
  // As many as there are in the span, without their size.
  template <class T>
  void numbers(std::span<T> values) {
    if (!reads_) bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    if (!reads_ || values.empty()) return;
    check(values.size_bytes() <= left(), "it ends too early");
    std::memcpy(values.data(), bytes_.data() + at_, values.size_bytes());
    at_ += values.size_bytes();
  }
  template <class T>
  void array(T& values) {  // a vector of numbers, or a string
    resize(values, sizeof(values[0]));
    numbers(std::span(values));
  }
  void strings(std::vector<std::string>& texts) {
    resize(texts, sizeof(uint64_t));  // each has its size before it
    for (std::string& text : texts) array(text);
  }

  const std::string& bytes() const { return bytes_; }
  size_t left() const { return bytes_.size() - at_; }  // bytes to read

 private:
  template <class T>
  void resize(T& values, size_t min_bytes_each) {
    uint64_t size = values.size();
    number(size);
    check(!reads_ || size <= left() / min_bytes_each, "it ends too early");
    values.resize(size);
  }

  bool reads_ = false;
  std::string bytes_;
  size_t at_ = 0;
};

class CacheFile {
 public:
  // The title, without its line end, says all that the results depend on.
  CacheFile(std::filesystem::path path, const std::string& title) : path_(std::move(path)), title_(title + "\n") {}

  const std::filesystem::path& path() const { return path_; }
  // Gives the results to `take`, which reads all of them and throws Error if they cannot be. False if there is no such
  // file, if it has another title, or, with one sentence on stderr, if it is damaged, `take` throws Error or leaves
  // something, or there are more than `most` bytes: then the results are to be computed again, and what `take` did is
  // to be dropped.
  bool read(const std::function<void(Archive&)>& take, uint64_t most = INT64_MAX) const;
  // Makes the folder, too. False if it cannot be written: a cache only saves time.
  bool write(const std::vector<std::span<const char>>& results) const;

 private:
  std::filesystem::path path_;
  std::string title_;
};

}  // namespace runnel
