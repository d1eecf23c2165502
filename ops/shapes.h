// The same numbers in another order or place. ops/ops.h has the letters.
#pragma once
#include <vector>

#include "engine/tensor.h"

namespace runnel {

Tensor reshape(const Tensor& x, Shape shape);              // the same numbers, the same storage
Tensor transpose(const Tensor& x);                         // the last two axes
Tensor transpose(const Tensor& x, std::vector<int> axes);  // axis i of the result is axis axes[i] of x
Tensor broadcast(const Tensor& x, const Shape& shape);     // repeated where x has size 1, or no axis
Tensor slice(const Tensor& x, int axis, int64_t first, int64_t count);
Tensor concat(const std::vector<Tensor>& x, int axis);  // behind each other; all other sizes are equal
Tensor stack(const std::vector<Tensor>& x);             // n times [...] -> [n,...]
Tensor gather(const Tensor& x, const Indices& rows);    // [n,...] [counts] -> [counts,...]

// Windows of images with zeros around them: rows of the pixels that each window sees. A convolution is linear(unfold(x,
// window), w, b) with w [out, height width C]; pooling is a mean or max over axis 3 of the windows as
// [B,rows,columns,height width,C].
struct Window {
  int64_t height, width, stride = 1, padding = 0;
};
Tensor unfold(const Tensor& x, const Window& window);  // [B,H,W,C] -> [B,rows,columns, height width C]

// x, and 0 at padding, the positions j >= lengths[b], where x may be anything; x itself if lengths are empty.
Tensor zero_padding(const Tensor& x, const Indices& lengths);  // [B,L,...] [B] -> [B,L,...]

Indices shifted(const Indices& x, int64_t by);  // x + by

// In place, without gradients, for sampling and optimizers. Indices and positions may lie on the device, so that
// a captured graph (engine/replay.h) can be replayed unchanged. On the CPU, throws if there is no such row.
void put_row(Indices& rows, const Indices& row, const Indices& index);  // rows[index[0]] = row
void advance(Indices& position, int64_t period = 0);                    // position[0] += 1; where that is the period, 0

}  // namespace runnel
