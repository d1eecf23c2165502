// Layers: dropout, layer normalisation, embedding. ops/ops.h has the letters.
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

}  // namespace runnel
