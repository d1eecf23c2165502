// Ops of the Performer and of Sparse Sinkhorn Attention. ops/ops.h has the letters.
#pragma once
#include "engine/random.h"
#include "engine/tensor.h"

namespace runnel {

// Positive random features (Choromanski et al. 2021): f_c = exp(w_c . x' - |x'|^2 / 2) / sqrt(F), x' = x / E^(1/4),
// with w_c the rows of the projection, which gets no gradient. Linear attention on them, with FeatureMap::identity,
// estimates softmax attention. f_c is at most exp(|w_c|^2 / 2) / sqrt(F), whatever x.
Tensor positive_random_features(const Tensor& x, const Tensor& projection);  // [...,E] [F,E] -> [...,F]
// [F,E]: normal rows, made orthogonal E at a time, which lowers the variance of the estimate.
Tensor random_projection(int64_t features, int64_t e, Key key, Device device = Device::cpu);

// For Sparse Sinkhorn Attention (Tay et al. 2020), whose positions are in N blocks; those j >= lengths[b] are padding.
// Doubly stochastic matrices: e^logits of the first N columns, whose rows and then columns are normalised, `iterations`
// times. Rows and columns of blocks that are padding alone are 0.
Tensor sinkhorn(const Tensor& logits, int64_t iterations, int64_t block,
                const Indices& lengths = {});  // [B,N,H,at least N] [B] -> [B,H,N,N]

}  // namespace runnel
