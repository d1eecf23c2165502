// Short causal convolutions. ops/ops.h has the letters.
#pragma once
#include "engine/tensor.h"

namespace runnel {

// Depthwise: each channel c of D sees its own last K <= 16 positions, z_t = sum over j < K of weight[c,j] x_{t-j}; y =
// z, or silu(z). Before the first position stands `before`, the oldest one first, or zeros if it is empty.
struct CausalConvolution {
  bool silu = false;
};
Tensor causal_convolution(const Tensor& x, const Tensor& weight, CausalConvolution options = {},
                          const Tensor& before = {});  // [B,L,D] [D,K] . [B,K-1,D] -> [B,L,D]
// One position, L = 1, for decoding: x becomes the last row of `before`. Has no gradient.
Tensor causal_convolution_step(const Tensor& x, const Tensor& weight, CausalConvolution options,
                               Tensor& before);  // [B,1,D] [D,K] . [B,K-1,D] -> [B,1,D]

}  // namespace runnel
