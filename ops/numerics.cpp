#include "ops/numerics.h"

#if RUNNEL_WITH_VARIANTS && defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <array>
#include <cstdlib>
#include <string>

#include "engine/check.h"

namespace runnel {
namespace {

Precision the_precision = Precision::f32;

constexpr std::array instruction_sets{InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512,
                                      InstructionSet::avx512_bf16, InstructionSet::dotprod};

// Whether this build has kernels for these instructions and the processor has the instructions.
bool has(InstructionSet set) {
#if RUNNEL_WITH_VARIANTS && defined(__aarch64__)
  constexpr unsigned long needed =
      HWCAP_ATOMICS | HWCAP_CRC32 | HWCAP_ASIMDRDM | HWCAP_ASIMDDP;  // of armv8.2-a+dotprod
  return set == InstructionSet::baseline ||
         (set == InstructionSet::dotprod && (getauxval(AT_HWCAP) & needed) == needed);
#elif RUNNEL_WITH_VARIANTS
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return set == InstructionSet::baseline || (set == InstructionSet::avx2 && avx2) ||
         (set == InstructionSet::avx512 && avx512) ||
         (set == InstructionSet::avx512_bf16 && avx512 && __builtin_cpu_supports("avx512vnni") &&
          __builtin_cpu_supports("avx512bf16"));
#elif defined(__AVX512BF16__)  // one set of kernels, for the instructions that the compiler was told of
  return set <= InstructionSet::avx512_bf16;
#elif defined(__AVX512BW__)
  return set <= InstructionSet::avx512;
#elif defined(__AVX2__)
  return set <= InstructionSet::avx2;
#elif defined(__ARM_FEATURE_DOTPROD)
  return set == InstructionSet::baseline || set == InstructionSet::dotprod;
#else
  return set == InstructionSet::baseline;
#endif
}

InstructionSet choose_instruction_set() {
  const char* const wish = std::getenv("RUNNEL_INSTRUCTION_SET");
  InstructionSet best = InstructionSet::baseline;
  for (const InstructionSet set : instruction_sets)
    if (has(set)) best = set;
  for (const InstructionSet set : instruction_sets) {
    if (!wish || name(set) != std::string(wish)) continue;
    check(has(set), "RUNNEL_INSTRUCTION_SET is ", wish,
          ", which this processor, or this build of runnel, lacks; it has ", name(best));
    return set;
  }
  check(!wish, "RUNNEL_INSTRUCTION_SET is '", wish ? wish : "",
        "'; it can be baseline, avx2, avx512, avx512_bf16 or dotprod");
  return best;
}

}  // namespace

const char* name(InstructionSet set) {
  constexpr std::array names{"baseline", "avx2", "avx512", "avx512_bf16", "dotprod"};
  return names[static_cast<size_t>(set)];
}

InstructionSet instruction_set() {
  static const InstructionSet chosen = choose_instruction_set();
  return chosen;
}

bool has_bf16() {
#if RUNNEL_WITH_ONEDNN  // which computes them
  return instruction_set() == InstructionSet::avx512_bf16;
#else
  return false;
#endif
}

void set_precision(Precision precision, Device device) {
  check(precision != Precision::bf16 || device == Device::cuda || has_bf16(),
        "this processor, or this build of runnel, has no bfloat16 products (AVX512_BF16); compute in f32");
  check(precision != Precision::int8 || device == Device::cpu, "weights of int8 are for the CPU");
  the_precision = precision;
}

Precision precision() { return the_precision; }

}  // namespace runnel
