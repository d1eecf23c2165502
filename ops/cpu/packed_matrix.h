// The right operand of many products on one thread: by oneDNN if the build has it, where it has kernels for packed
// operands, which older versions have for AVX-512 only; else by panels.h.
#pragma once
#include <type_traits>

#include "ops/cpu/panels.h"
#if RUNNEL_WITH_ONEDNN
#include "ops/cpu/gemm.h"
#endif

namespace runnel {
namespace {

// Types of the file that includes this, as everything here is.
#if RUNNEL_WITH_ONEDNN
constexpr bool use_onednn = lanes == 16;
using PackedBase = std::conditional_t<use_onednn, onednn::PackedMatrix, PanelMatrix>;
using PackedOperand = std::conditional_t<use_onednn, onednn::Operand, PanelOperand>;
#else
constexpr bool use_onednn = false;
using PackedBase = PanelMatrix;
using PackedOperand = PanelOperand;
#endif
struct PackedWeights : PackedBase {
  using PackedBase::PackedBase;
};

}  // namespace
}  // namespace runnel
