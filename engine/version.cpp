#include "engine/version.h"

#include <sstream>

#include "engine/device.h"
#include "engine/numerics.h"

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
  if (cuda_is_emulated()) return "emulated on the CPU";
  const std::string toolkit = build_info.cuda;
  return (toolkit.empty() ? "" : toolkit + ", ") + (why_not.empty() ? model_name(Device::cuda) : why_not);
}

// The instruction sets that Runnel's kernels and oneDNN profit from, as far as this processor has them.
std::string instruction_sets() {
#if defined(__x86_64__)
  std::string text;
  if (__builtin_cpu_supports("avx2")) text += " AVX2";
  if (__builtin_cpu_supports("avx512f")) text += " AVX-512";
  if (has_bf16()) text += " AVX512_BF16";
  return text.empty() ? " no AVX2" : text;
#else
  return " not x86-64";
#endif
}

}  // namespace

std::string version_text() {
  std::ostringstream text;
  text << "runnel " << build_info.version;
  if (*build_info.commit) text << ", commit " << build_info.commit;
  text << "\ncompiler   " << compiler() << ", for " << build_info.processor << "\noneDNN     " << build_info.onednn
       << "\nCUDA       " << cuda_text() << "\nprocessor  " << model_name(Device::cpu) << ":" << instruction_sets();
  return text.str();
}

}  // namespace runnel
