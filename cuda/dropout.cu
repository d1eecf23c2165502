// Dropout: y_i = x_i / (1 - p) with probability 1 - p, else 0. The random bits of element i are a function of the key
// and i (engine/random.h), so the mask is the CPU's and is drawn again where it is needed again. A thread draws for
// four elements at a time: one Philox block of ten rounds for 32 bytes of traffic, which the memory hides.
#include "cuda/map.h"
#include "ops/kernels/layers.h"

namespace runnel::cuda {
namespace {

// Launch: over_fours(n). Owns: y[i]. Shared: none.
__global__ void dropout_kernel(float* y, const float* x, int64_t n, Mask mask) {
  map(
      y, n, [](float xi, float factor) { return xi * factor; }, Elements{x}, DropoutFactors{mask});
}

}  // namespace

void dropout(float* y, const float* x, int64_t n, Dropout dropout) {
  launch("dropout", dropout_kernel, over_fours(n), y, x, n, Mask(dropout));
}

}  // namespace runnel::cuda
