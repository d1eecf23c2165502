#include <sstream>

#include "apps/cli/version.h"
#include "apps/package.h"
#include "engine/device.h"
#include "ops/numerics.h"

namespace runnel {
namespace {

std::string compiler() {
#if defined(__clang__)
  return __VERSION__;  // with its name
#else
  return "g++ " __VERSION__;
#endif
}

std::string cuda_text() {
  const std::string why_not = why_unavailable(Device::cuda);
  const std::string libraries = build_info.cuda;
  if (cuda_is_emulated()) return "emulated on the CPU";
  return (libraries.empty() ? "" : libraries + ", ") + (why_not.empty() ? model_name(Device::cuda) : why_not);
}

}  // namespace

std::string version_text() {
  std::ostringstream text;
  text << program_text() << "\ncompiler   " << compiler() << "\noneDNN     " << build_info.onednn << "\nCUDA       "
       << cuda_text() << "\nprocessor  " << model_name(Device::cpu) << ", used as " << name(instruction_set());
  for (const Package* package : packages())
    if (package->version) text << package->version();
  return text.str();
}

}  // namespace runnel
