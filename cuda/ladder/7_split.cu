// Rung 7: L is cut into segments that are scanned side by side, until there are four blocks per multiprocessor. A
// segment needs the state before it, so there are three launches:
//
//   sums     each segment's own sum of a_j b_j^T, one product per chunk instead of four
//   prefix   along the segments of a head: the state before each
//   scan     the kernel of rung 6 in each segment, from that state
//
// The rungs before have a block per head, whatever L is: a machine with room for a thousand blocks runs 80, or 8. Rung
// 6 waits for memory, then for its barriers; with several blocks on a multiprocessor, one computes while another waits.
//
// What is left to waste: a and b are read twice. Memory is now the limit: four tensors and these two again. A
// profiler shows it as DRAM throughput, for the first time on this ladder. The kernel that models use,
// linear_attention_causal.cu, has this form, with feature map and normaliser in the same pass.
#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "ops/ladder/kernels.h"

namespace runnel::cuda {
namespace {

constexpr int chunk = 32;

// Launch: a block of 128 threads per 128 numbers of the state of a sequence and head.
// Owns:   a thread one number of the state before all segments.
// Shared: nothing.
__global__ void __launch_bounds__(128)
    ladder_prefix_kernel(float* __restrict__ before, const float* __restrict__ sums, int64_t segments) {
  const int64_t number = first_element();
  const int64_t first = number / LadderSizes::state * segments * LadderSizes::state + number % LadderSizes::state;
  float sum = 0;
#pragma unroll 8
  for (int64_t segment = 0; segment < segments; ++segment) {
    before[first + segment * LadderSizes::state] = sum;
    sum += sums[first + segment * LadderSizes::state];
  }
}

}  // namespace

void ladder_split(float* y, const float* x, const float* a, const float* b, LadderSizes sizes) {
  const int64_t wanted = std::max<int64_t>(1, 4 * multiprocessors() / sizes.sequences());
  const int64_t chunks = (sizes.length + chunk - 1) / chunk, segment = (chunks + wanted - 1) / wanted * chunk;
  const int64_t segments = (sizes.length + segment - 1) / segment;
  if (segments == 1) return ladder_tensor_cores(y, x, a, b, sizes);

  const int64_t states = sizes.sequences() * segments * LadderSizes::state;  // [N,segments,32,32]
  const Temporary<float> sums(states), before(states);
  ladder_segments(nullptr, sums.data(), nullptr, a, b, nullptr, sizes, segment);
  const Grid grid{dim3(static_cast<unsigned>(sizes.sequences() * LadderSizes::state / 128)), dim3(128)};
  launch("ladder_prefix", ladder_prefix_kernel, grid, before.data(), sums.data(), segments);
  ladder_segments(y, nullptr, x, a, b, before.data(), sizes, segment);
}

}  // namespace runnel::cuda
