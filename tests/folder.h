// A temporary folder of files that a test writes.
#pragma once
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace runnel::test {

struct Folder {
  std::filesystem::path path;
  Folder() : path(std::filesystem::temp_directory_path() / "runnel_XXXXXX") {
    std::string name = path;
    if (!mkdtemp(name.data())) std::abort();
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Makes the folders above it, too.
inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

// A cache file that says what somebody changed in it, with a checksum that is right again.
inline void write_cache(const std::filesystem::path& path, std::string bytes) {
  const size_t size = bytes.size() - sizeof(uint32_t);
  const auto sum = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), size));
  std::memcpy(bytes.data() + size, &sum, sizeof sum);
  write_bytes(path, bytes);
}

}  // namespace runnel::test
