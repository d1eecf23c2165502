// The kernels of ops/gated_linear_attention.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "ops/kernels/attention_sizes.h"
#include "ops/kernels/dispatch.h"
#include "ops/types.h"

namespace runnel {

// The tensors of one call. beta [B,L,H] and g [B,L,H] or, if `per_channel`, [B,L,H,E] may be null: 1 and 0; s0
// [B,H,E,M] may be null: zero.
struct GatedInputs {
  const float *q, *k, *v, *beta, *g, *s0;
  const int32_t* lengths;
  UpdateRule rule;
  bool per_channel;
  AttentionSizes sizes;
};
// dbeta, dg and ds0 may be null: not wanted.
struct GatedGradients {
  float *dq, *dk, *dv, *dbeta, *dg, *ds0;
};

// y [B,L,H,M], and the state after the last position s1 [B,H,E,M].
KERNEL(gated_linear_attention_forward(float* y, float* s1, const GatedInputs& in))
// From dy [B,L,H,M] and ds1 [B,H,E,M] (null: zero).
KERNEL(gated_linear_attention_backward(const GatedGradients& to, const float* dy, const float* ds1,
                                       const GatedInputs& in))

}  // namespace runnel
