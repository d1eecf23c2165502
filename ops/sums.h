// Sums, and what classifiers end in. ops/ops.h has the letters.
#pragma once
#include "engine/tensor.h"

namespace runnel {

Tensor sum(const Tensor& x);  // [...] -> []

// The mean of each sequence's positions before lengths[b], 0 if there are none. Empty lengths: all are L.
Tensor mean_positions(const Tensor& x, const Indices& lengths);  // [B,L,D] [B] -> [B,D]
// Of pairs of rows a, b one after the other: (a, b, a b, a - b), element by element.
Tensor pair_features(const Tensor& x);  // [2B,D] -> [B,4D]

}  // namespace runnel
