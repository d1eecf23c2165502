// What the fuzz targets share: the bytes that libFuzzer made, as a file.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/check.h"

namespace runnel::fuzz {

// The same file each time, in memory if the machine has such a folder.
inline std::filesystem::path write(const std::string& name, const uint8_t* data, size_t size) {
  static const std::filesystem::path folder = [] {
    const std::filesystem::path shared = "/dev/shm";
    const auto base = std::filesystem::is_directory(shared) ? shared : std::filesystem::temp_directory_path();
    const auto own = base / ("runnel_fuzz_" + std::to_string(getpid()));
    std::filesystem::create_directories(own);
    return own;
  }();
  std::ofstream(folder / name, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<int64_t>(size));
  return folder / name;
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
