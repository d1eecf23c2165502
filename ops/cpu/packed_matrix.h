// The right operand of many products on one thread: by oneDNN where it has kernels for packed operands, which older
// versions have for AVX-512 only; else by panels.h.
#pragma once
#include <type_traits>

#include "ops/cpu/gemm.h"
#include "ops/cpu/panels.h"

namespace runnel {
namespace {

constexpr bool use_onednn = lanes == 16;
// A type of the file that includes this, as everything here is.
struct PackedWeights : std::conditional_t<use_onednn, onednn::PackedMatrix, PanelMatrix> {
  using Base = std::conditional_t<use_onednn, onednn::PackedMatrix, PanelMatrix>;
  using Base::Base;
};
using PackedOperand = std::conditional_t<use_onednn, onednn::Operand, PanelOperand>;

}  // namespace
}  // namespace runnel
