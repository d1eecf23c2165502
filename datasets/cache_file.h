// Results that took long to compute, in a file: a line that says what they are, their bytes, and the CRC-32 of both.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace runnel {

template <class T>
std::span<const char> as_chars(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class CacheFile {
 public:
  // The title, without its line end, says all that the results depend on.
  CacheFile(std::filesystem::path path, const std::string& title) : path_(std::move(path)), title_(title + "\n") {}

  const std::filesystem::path& path() const { return path_; }
  // The results. None if there is no such file, if it has another title, is damaged, or has more than `most` bytes of
  // results.
  std::optional<std::string> read(uint64_t most = INT64_MAX) const;
  // Makes the folder, too. False if it cannot be written: a cache only saves time.
  bool write(const std::vector<std::span<const char>>& results) const;

 private:
  std::filesystem::path path_;
  std::string title_;
};

}  // namespace runnel
