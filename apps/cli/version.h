// Which Runnel this is, how it was built, and what this machine offers.
#pragma once
#include <string>

namespace runnel {

// Written at build time by CMake.
struct BuildInfo {
  const char* version;  // "0.1.0"
  const char* commit;   // "0123456789ab", followed by "-dirty" if files differ from it; "" outside a git repository
  const char* onednn;   // "2.6.3"
  const char* cuda;     // the toolkit, "13.0.88"; "" without CUDA
};
extern const BuildInfo build_info;

// "runnel 0.1.0, commit 0123456789ab".
std::string program_text();

// All of it, with the compiler, this machine's processor and its GPU, in a few lines, as `runnel --version` prints it.
std::string version_text();

}  // namespace runnel
