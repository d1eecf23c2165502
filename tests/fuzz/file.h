// For the fuzz targets: the bytes that libFuzzer made, as a file.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/check.h"

namespace runnel::fuzz {

// A folder of this process, in memory if the machine has such a place.
struct Folder {
  std::filesystem::path path;
  Folder() {
    const std::filesystem::path shared = "/dev/shm";
    path = (std::filesystem::is_directory(shared) ? shared : std::filesystem::temp_directory_path()) /
           ("runnel_fuzz_" + std::to_string(getpid()));
    std::filesystem::create_directories(path);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

// The same file each time.
inline std::filesystem::path write(const std::string& name, const uint8_t* data, size_t size) {
  static const Folder folder;
  const std::filesystem::path file = folder.path / name;
  std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<int64_t>(size));
  return file;
}

// Whatever is wrong must end as an Error: anything else stops the fuzzer.
template <class F>
int ends_well(F f) {
  try {
    f();
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace runnel::fuzz
