// Which of the instruction sets of ops/numerics.h the processor has, and whether its bfloat16 products are fast.
#if RUNNEL_WITH_VARIANTS && defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "ops/numerics.h"

namespace runnel {
namespace {

// Whether the processor has the tiles of AMX, and the system lets this process use them.
[[maybe_unused]] bool has_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned bf16 = 1u << 22, tiles = 1u << 24, int8 = 1u << 25, all = bf16 | tiles | int8;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace

bool has_instructions(InstructionSet set) {
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
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  return set == InstructionSet::baseline || (set == InstructionSet::avx2 && avx2) ||
         (set == InstructionSet::avx512 && avx512) || (set == InstructionSet::avx512_bf16 && bf16) ||
         (set == InstructionSet::amx && bf16 && has_amx());
#elif defined(__AVX512BF16__)  // one set of kernels, for the instructions that the compiler was told of
  return set <= InstructionSet::avx512_bf16 || (set == InstructionSet::amx && has_amx());
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

// AVX512_BF16's instruction multiplies twice as many numbers as one of float32. Intel's processors take four times as
// long for it (measured on Emerald Rapids); on AMD's, training is 1.5 times as fast in bf16 (Zen 4).
bool is_bf16_faster() {
#if defined(__x86_64__)
  return has_bf16() && (instruction_set() == InstructionSet::amx || !__builtin_cpu_is("intel"));
#else
  return has_bf16();
#endif
}

}  // namespace runnel
