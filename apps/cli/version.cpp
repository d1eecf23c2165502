#include "apps/cli/version.h"

#include <sstream>

#include "apps/processes/mpi_communicator.h"
#include "apps/processes/nccl_communicator.h"
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
  std::string libraries = build_info.cuda;
  if constexpr (with_cuda) libraries += (libraries.empty() ? "" : ", ") + cuda::nccl_version();
  if (cuda_is_emulated()) return "emulated on the CPU, with " + libraries;
  return (libraries.empty() ? "" : libraries + ", ") + (why_not.empty() ? model_name(Device::cuda) : why_not);
}

}  // namespace

std::string program_text() {
  return std::string("runnel ") + build_info.version + (*build_info.commit ? ", commit " : "") + build_info.commit;
}

std::string version_text() {
  std::ostringstream text;
  text << program_text() << "\ncompiler   " << compiler() << "\noneDNN     " << build_info.onednn << "\nCUDA       "
       << cuda_text() << "\nprocessor  " << model_name(Device::cpu) << ", used as " << name(instruction_set())
       << "\nMPI        " << mpi_version();
  return text.str();
}

}  // namespace runnel
