// q [B,L,H,E], k [B,S,H,E], v [B,S,H,M], y [B,L,H,M]; lengths [B] (null: all are S): keys j >= lengths[b] are padding,
// which no query sees. A causal query sees only keys j <= i, and S is L. A query that sees no key gets zeros.
#pragma once
#include <cstdint>

namespace runnel {

struct AttentionSizes {
  int64_t batch, length, key_length, heads, e, m;  // B, L, S, H, E, M
  bool causal;
  constexpr int64_t sequences() const { return batch * heads; }  // N
};

}  // namespace runnel
