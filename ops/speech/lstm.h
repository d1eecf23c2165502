// Long short-term memory. ops/ops.h has the letters.
#pragma once
#include <vector>

#include "engine/tensor.h"

namespace runnel {

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

}  // namespace runnel
