// Which keys a query sees. One that sees none gets zeros.
#pragma once
#include "engine/tensor.h"

namespace runnel {

struct AttentionMask {
  bool causal = true;    // only keys j <= i; S must be L
  Indices lengths = {};  // [B]: keys j >= lengths[b] are padding, which no query sees; empty: all are S
};

}  // namespace runnel
