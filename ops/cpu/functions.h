// The functions of one number in ops/kernels/formulas.h, for vectors: name_formula::forward(x), and ::backward(saved),
// the derivative.
#pragma once
#include "ops/cpu/vector.h"

namespace runnel {
namespace {

#define FUNCTION(name, value, saved, derivative)           \
  struct name##_formula {                                  \
    RUNNEL_INLINE static Lanes forward(Lanes x) {          \
      [[maybe_unused]] const Lanes zero{}, one = splat(1); \
      return value;                                        \
    }                                                      \
    RUNNEL_INLINE static Lanes backward(Lanes saved) {     \
      [[maybe_unused]] const Lanes zero{}, one = splat(1); \
      return derivative;                                   \
    }                                                      \
  };
#include "ops/kernels/formulas.h"
#undef FUNCTION

}  // namespace
}  // namespace runnel
