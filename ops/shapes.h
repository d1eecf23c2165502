// Other shapes of the same numbers: columns, positions and rows. ops/ops.h has the letters.
#pragma once
#include "engine/tensor.h"

namespace runnel {

Tensor reshape(const Tensor& x, Shape shape);  // the same numbers, the same storage

// The columns of a, then those of b. b [at least L,...,n] may also be what a batch a [B,L,...,m] shares.
Tensor concat(const Tensor& a, const Tensor& b);  // [...,m] [...,n] -> [...,m+n]

// x[:,:n].
Tensor first_positions(const Tensor& x, int64_t n);  // [B,L,...] -> [B,n,...]
// x whose first positions are `first`.
Tensor with_first_positions(const Tensor& x, const Tensor& first);  // [B,L,...] [B,n,...] -> [B,L,...]

// The rows of x along its first axis that are asked for. Has no gradient.
Tensor gather_rows(const Tensor& x, const Indices& rows);  // [n,...] [count] -> [count,...]

Indices shifted(const Indices& x, int64_t by);  // x + by

// In place, without gradients: what sampling and optimizers need. Indices and positions may lie on the device, so that
// a captured graph (engine/replay.h) can be replayed unchanged. On the CPU, throws if there is no such row.
void put_row(Indices& rows, const Indices& row, const Indices& index);  // rows[index[0]] = row
void advance(Indices& position, int64_t period = 0);                    // position[0] += 1; where that is the period, 0

}  // namespace runnel
