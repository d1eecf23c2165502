// Layers: dropout, layer normalisation, embedding, short convolutions. ops/ops.h has the letters.
#pragma once
#include "engine/random.h"
#include "engine/tensor.h"

namespace runnel {

Tensor dropout(const Tensor& x, Dropout dropout);  // [...] -> [...]

// Over the last axis, with eps = 1e-5 as in the authors' framework.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta);  // [...,D] [D] [D] -> [...,D]
// layer_norm(x + dropout(a)): how a post-norm block ends.
Tensor add_layer_norm(const Tensor& x, const Tensor& a, const Tensor& gamma, const Tensor& beta, Dropout dropout = {});

// dropout(concat(table[token], code[first + l])): learned embedding beside a fixed position code. An empty code is
// left out, an empty first is 0. On the CPU, throws if a token is not in [0, V) or code has too few rows.
Tensor embedding(const Indices& tokens, const Tensor& table, const Tensor& code, Dropout dropout = {},
                 const Indices& first = {});  // [B,L] [V,D1] [at least first+L,D2] . [1] -> [B,L,D1+D2]

// Depthwise: each channel c of D sees its own last K <= 16 positions, z_t = sum over j < K of weight[c,j] x_{t-j}; y = z,
// or silu(z). Before the first position stands `before`, the oldest one first, or zeros if it is empty.
struct CausalConvolution {
  bool silu = false;
};
Tensor causal_convolution(const Tensor& x, const Tensor& weight, CausalConvolution options = {},
                          const Tensor& before = {});  // [B,L,D] [D,K] . [B,K-1,D] -> [B,L,D]
// One position, L = 1, for decoding: x becomes the last row of `before`. Has no gradient.
Tensor causal_convolution_step(const Tensor& x, const Tensor& weight, CausalConvolution options,
                               Tensor& before);  // [B,1,D] [D,K] . [B,K-1,D] -> [B,1,D]

}  // namespace runnel
