// Where the tests find sources and program: as built, or, in an installed bundle, as the environment says.
#pragma once
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace runnel::test {

inline std::string from_environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}
inline std::filesystem::path source_dir() { return from_environment("RUNNEL_SOURCE_DIR", RUNNEL_SOURCE_DIR); }
inline std::string program() { return from_environment("RUNNEL_PROGRAM", RUNNEL_PROGRAM); }

// Whether this build has the package.
inline bool has_package(const std::string& name) {
  return (" " + std::string(RUNNEL_PACKAGES) + " ").find(" " + name + " ") != std::string::npos;
}

// A bundle has the golden files, but not the sources.
inline bool has_sources() {
  const bool has = std::filesystem::exists(source_dir() / "CMakeLists.txt");
  if (!has) MESSAGE("skipped: 1 test, the sources are not here");
  return has;
}

}  // namespace runnel::test
