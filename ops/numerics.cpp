#include "ops/numerics.h"

#include <array>
#include <cstdlib>
#include <string>

#include "engine/check.h"

namespace runnel {
namespace {

Precision the_precision = Precision::f32;

constexpr std::array instruction_sets{InstructionSet::baseline,    InstructionSet::avx2, InstructionSet::avx512,
                                      InstructionSet::avx512_bf16, InstructionSet::amx,  InstructionSet::dotprod};

InstructionSet choose_instruction_set() {
  const char* const wish = std::getenv("RUNNEL_INSTRUCTION_SET");
  InstructionSet best = InstructionSet::baseline;
  for (const InstructionSet set : instruction_sets)
    if (has_instructions(set)) best = set;
  for (const InstructionSet set : instruction_sets) {
    if (!wish || name(set) != std::string(wish)) continue;
    check(has_instructions(set), "RUNNEL_INSTRUCTION_SET is ", wish,
          ", which this processor, or this build of runnel, lacks; it has ", name(best));
    return set;
  }
  check(!wish, "RUNNEL_INSTRUCTION_SET is '", wish ? wish : "",
        "'; it can be baseline, avx2, avx512, avx512_bf16, amx or dotprod");
  return best;
}

}  // namespace

const char* name(InstructionSet set) {
  constexpr std::array names{"baseline", "avx2", "avx512", "avx512_bf16", "amx", "dotprod"};
  return names[static_cast<size_t>(set)];
}

InstructionSet instruction_set() {
  static const InstructionSet chosen = choose_instruction_set();
  return chosen;
}

bool has_bf16() {
#if RUNNEL_WITH_ONEDNN  // which computes them
  return instruction_set() == InstructionSet::avx512_bf16 || instruction_set() == InstructionSet::amx;
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
