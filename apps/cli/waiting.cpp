#include "apps/cli/waiting.h"

#include <unistd.h>

#include <cstdlib>

namespace runnel {

void spin_shortly(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT") || std::getenv("KMP_BLOCKTIME")) return;
  setenv("GOMP_SPINCOUNT", "2000", 1);  // of GCC's OpenMP, some ten microseconds
  setenv("KMP_BLOCKTIME", "0", 1);      // of LLVM's, which is fastest when it sleeps
  execv("/proc/self/exe", argv);        // where that fails, threads spin for longer
}

}  // namespace runnel
