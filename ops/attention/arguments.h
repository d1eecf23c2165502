// The checks of arguments that all attention ops share.
#pragma once
#include <algorithm>
#include <vector>

#include "engine/check.h"
#include "ops/attention_mask.h"
#include "ops/checks.h"
#include "ops/kernels/attention_sizes.h"

namespace runnel {

// Throws unless q [B,L,H,E], k [B,S,H,E], v [B,S,H,M] and the mask fit together.
inline AttentionSizes check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const AttentionMask& mask) {
  const Shape &qs = q.shape(), &ks = k.shape(), &vs = v.shape();
  check(qs.rank() == 4, op, ": q ", qs, " is not [B,L,H,E]");
  check(ks.rank() == 4 && ks == Shape{qs[0], ks[1], qs[2], qs[3]}, op, ": k ", ks, " does not match q ", qs);
  check(vs.rank() == 4 && vs == ks.with_last(vs[3]), op, ": v ", vs, " does not match k ", ks);
  const AttentionSizes s{qs[0], qs[1], ks[1], qs[2], qs[3], vs[3], mask.causal};
  check(s.e > 0 && s.m > 0, op, ": q ", qs, " or v ", vs, " has no columns");
  check(!s.causal || s.length == s.key_length, op, ": q ", qs, " and k ", ks,
        " must have the same length to be causal");

  device_of(op, q, k, v, mask.lengths);
  check_lengths(op, mask.lengths, s.batch, s.key_length);
  return s;
}

// The same for decoding: one position.
inline AttentionSizes check_attention_step(const char* op, const Tensor& q, const Tensor& k, const Tensor& v) {
  check(q.shape().rank() == 4 && q.shape()[1] == 1, op, ": q ", q.shape(), " is not [B,1,H,E]");
  refuse_gradient(op, "q", q);
  refuse_gradient(op, "k", k);
  refuse_gradient(op, "v", v);
  return check_attention(op, q, k, v, {});
}

// Tensors for the gradients of q, k and v. Where these have one shape, the gradients are parts of one tensor, as a
// linear layer before them wants them.
inline std::vector<Tensor> gradients_like(const std::vector<Tensor>& inputs) {
  const Shape& shape = inputs[0].shape();
  const auto has_it = [&](const Tensor& x) { return x.shape() == shape; };
  if (std::all_of(inputs.begin(), inputs.end(), has_it))
    return Tensor(shape.stacked(std::ssize(inputs)), inputs[0].device()).parts();
  std::vector<Tensor> gradients;
  for (const Tensor& x : inputs) gradients.emplace_back(x.shape(), x.device());
  return gradients;
}

}  // namespace runnel
