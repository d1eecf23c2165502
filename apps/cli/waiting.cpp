#include "apps/cli/waiting.h"

#include <unistd.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>

#include <climits>
#endif

#include <cstdlib>
#include <filesystem>

namespace runnel {

std::string program_path() {
#if defined(__APPLE__)
  char path[PATH_MAX] = "";
  uint32_t size = sizeof path;
  return _NSGetExecutablePath(path, &size) == 0 ? path : "";
#else
  std::error_code unreadable;
  return std::filesystem::read_symlink("/proc/self/exe", unreadable).string();
#endif
}

void spin_shortly(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT") || std::getenv("KMP_BLOCKTIME")) return;
  setenv("GOMP_SPINCOUNT", "2000", 1);  // of GCC's OpenMP, some ten microseconds
  setenv("KMP_BLOCKTIME", "0", 1);      // of LLVM's, which is fastest when it sleeps
  execv(program_path().c_str(), argv);  // where that fails, threads spin for longer
}

}  // namespace runnel
