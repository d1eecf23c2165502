// A setting of block_sparse_attention, shared with its kernels.
#pragma once
#include <cstdint>

namespace runnel {

// In block_sparse_attention: query i sees key j only if |i - j| <= reach or j < global.
struct Band {
  int64_t reach, global = 0;
};

}  // namespace runnel
