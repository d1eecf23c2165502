// Layers: dropout, LSTM, layer normalisation, embedding. ops/ops.h has the letters.
#pragma once
#include <vector>

#include "engine/random.h"
#include "engine/tensor.h"

namespace runnel {

Tensor dropout(const Tensor& x, Dropout dropout);  // [...] -> [...]

// States of a layer of D directions, h and c [D,B,H] both; empty: zero.
struct LstmState {
  Tensor h, c;
};
struct LstmResult {
  Tensor y;  // [B,T,D H], 0 at padding
  LstmState state;
};
// A layer of a long short-term memory, as PyTorch defines it. Of each direction, forward and then backward: the gates
// W x + b, in blocks i, f, g, o, and the recurrent weights. Sequence b has lengths[b] frames (empty: T): the backward
// direction begins at its last one.
LstmResult lstm(const std::vector<Tensor>& gates, const std::vector<Tensor>& w, const Indices& lengths = {},
                const LstmState& initial = {});  // D times [B,T,4H], D times [4H,H], [B]

// Over the last axis, with eps = 1e-5 as in the authors' framework.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta);  // [...,D] [D] [D] -> [...,D]
// layer_norm(x + dropout(a)): how a post-norm block ends.
Tensor add_layer_norm(const Tensor& x, const Tensor& a, const Tensor& gamma, const Tensor& beta, Dropout dropout = {});

// dropout(concat(table[token], code[first + l])): learned embedding beside a fixed position code. An empty code is
// left out, an empty first is 0. On the CPU, throws if a token is not in [0, V) or code has too few rows.
Tensor embedding(const Indices& tokens, const Tensor& table, const Tensor& code, Dropout dropout = {},
                 const Indices& first = {});  // [B,L] [V,D1] [at least first+L,D2] . [1] -> [B,L,D1+D2]

}  // namespace runnel
