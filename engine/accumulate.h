// The sums that the engine itself computes: of gradients.
#pragma once
#include <cstdint>

#include "engine/device.h"

namespace runnel {

// y = a + b; y may be a or b.
void accumulate(Device device, float* y, const float* a, const float* b, int64_t n);
// y = a + b, rounded to bfloat16. b may be null: 0.
void accumulate_bf16(Device device, float* y, const float* a, const float* b, int64_t n);

}  // namespace runnel
