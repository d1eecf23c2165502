// A setting of softmax_attention's pattern, shared with its kernels.
#pragma once
#include <cstdint>

namespace runnel {

// Query i sees key j only if |i - j| <= reach or j < global.
struct Band {
  int64_t reach, global = 0;
};

}  // namespace runnel
