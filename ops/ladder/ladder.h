// The ladder: one function in several versions for each device, each of them a rung that changes one thing about the
// rung before. docs/ladder.md tells why, runnel bench ladder times them. Nothing else uses them: causal_product and
// linear_attention have kernels of their own.
#pragma once
#include <vector>

#include "engine/tensor.h"

namespace runnel {

struct LadderSizes;  // ops/ladder/kernels.h

struct Rung {
  const char* name;  // of its file, without the extension
  const char* idea;
  Device device;
  void (*scan)(float* y, const float* x, const float* a, const float* b, LadderSizes sizes);
};

// Those of the CPU are in ops/ladder/, those of CUDA, of which there are none in a build without it, in cuda/ladder/.
std::vector<Rung> ladder(Device device);

// y_i = sum_{j<=i} (x_i . a_j) b_j, written to y; all four [B,L,H,32], with at least one position and on
// the rung's device. Throws Error if they are not.
void run(const Rung& rung, Tensor y, const Tensor& x, const Tensor& a, const Tensor& b);

}  // namespace runnel
