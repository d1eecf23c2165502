// The parts that a package adds to the program. Packages are folders of the same name in ops, models, datasets, apps
// and tests, which RUNNEL_PACKAGES in CMakeLists.txt lists; nothing outside of one names it.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/subcommand.h"
#include "engine/device.h"

namespace runnel {

struct BenchKernel;  // apps/bench/kernels.h

struct Package {  // in apps/<package>/package.cpp; null: it adds nothing of the kind
  void (*add_commands)(Subcommand program) = nullptr;
  void (*add_benchmarks)(Subcommand bench) = nullptr;
  std::vector<BenchKernel> (*kernels)(Device device) = nullptr;  // for `bench kernels`
  std::string (*version)() = nullptr;                            // lines of --version

  // Before anything else: if another program has started this one as one of several processes, makes processes()
  // (apps/training/communicator.h) say so.
  void (*find_launcher)() = nullptr;
};
std::span<const Package* const> packages();

}  // namespace runnel
