// The kernels of the ladder: one function in several versions for each device, in the order in which docs/ladder.md
// explains them. With x, a, b and y [B,L,H,32], of which none is empty,
//
//   y = scan(x, a, b):   y_i = sum_{j<=i} (x_i . a_j) b_j = x_i^T S_i,   S_i = sum_{j<=i} a_j b_j^T   [32,32]
//
// is causal_product of q, k and v: the forward pass of the paper's Algorithm 1.
#pragma once
#include <cstdint>

#include "ops/kernels/dispatch.h"

namespace runnel {

constexpr int ladder_width = 32;

struct LadderSizes {
  static constexpr int64_t state = ladder_width * ladder_width;    // numbers of S
  int64_t batch, length, heads;                                    // B, L, H
  constexpr int64_t sequences() const { return batch * heads; }    // N
  constexpr int64_t step() const { return heads * ladder_width; }  // numbers from a position to the next
  // The first number of position i of sequence n = b H + h.
  constexpr int64_t at(int64_t n, int64_t i) const {
    return ((n / heads * length + i) * heads + n % heads) * ladder_width;
  }
};

CPU_KERNEL(ladder_definition(float* y, const float* x, const float* a, const float* b, LadderSizes sizes))
CPU_KERNEL(ladder_state(float* y, const float* x, const float* a, const float* b, LadderSizes sizes))
CPU_KERNEL(ladder_registers(float* y, const float* x, const float* a, const float* b, LadderSizes sizes))
// What ladder_registers does with positions [begin,end) of sequence n, given the state s [32,32] before them, which
// becomes that after them. y may be null: only the state is wanted, and x is not read.
CPU_KERNEL(ladder_segment(float* y, float* s, const float* x, const float* a, const float* b, LadderSizes sizes,
                          int64_t n, int64_t begin, int64_t end))
CPU_KERNEL(ladder_threads(float* y, const float* x, const float* a, const float* b, LadderSizes sizes))

namespace cuda {

void ladder_thread(float* y, const float* x, const float* a, const float* b, LadderSizes sizes);
void ladder_block(float* y, const float* x, const float* a, const float* b, LadderSizes sizes);
void ladder_shared(float* y, const float* x, const float* a, const float* b, LadderSizes sizes);
void ladder_registers(float* y, const float* x, const float* a, const float* b, LadderSizes sizes);
void ladder_chunks(float* y, const float* x, const float* a, const float* b, LadderSizes sizes);
void ladder_tensor_cores(float* y, const float* x, const float* a, const float* b, LadderSizes sizes);
// What ladder_tensor_cores does, in all segments of `segment` positions (the last of a sequence may be shorter) at
// once. `before` [N,segments,32,32] are the states before them (null: zero), `after` is their contribution to the state
// (null: not wanted). y may be null: then x is not read.
void ladder_segments(float* y, float* after, const float* x, const float* a, const float* b, const float* before,
                     LadderSizes sizes, int64_t segment);
void ladder_split(float* y, const float* x, const float* a, const float* b, LadderSizes sizes);

}  // namespace cuda
}  // namespace runnel
