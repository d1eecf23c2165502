// Softmax attention with a bias that is added to the scores q_i . k_j / sqrt(E), or that is the scores.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/attention/arguments.h"
#include "ops/kernels/lra.h"
#include "ops/lra/attention.h"

namespace runnel {

Tensor biased_softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
                                const AttentionMask& mask) {
  const char* const op = "biased_softmax_attention";
  check(!mask.causal, op, ": it has no causal form; the mask must not be causal");
  const bool has_scores = q || k;
  check(has_scores || v.shape().rank() == 4, op, ": v ", v.shape(), " is not [B,S,H,M]");
  AttentionSizes s = has_scores ? check_attention(op, q, k, v, mask) : check_attention(op, v, v, v, mask);
  if (!has_scores) s.e = 0;
  device_of(op, v, bias);
  const Shape& shape = bias.shape();
  const bool is_shared = shape.rank() == 3;
  check(shape.rank() == 3 || (shape.rank() == 4 && shape[0] == s.batch), op, ": bias ", shape,
        " is neither [H,rows,columns] nor [B,H,rows,columns] with B ", s.batch);
  check(shape[-3] == s.heads && shape[-2] >= s.length && shape[-1] >= s.key_length, op, ": bias ", shape,
        " does not cover ", s.heads, " heads, ", s.length, " queries and ", s.key_length, " keys");

  const Indices lengths = mask.lengths;
  const auto bias_of = [is_shared](const Tensor& b) {
    return AttentionBias{b.data(), b.shape()[-2], b.shape()[-1], is_shared};
  };
  Tensor y(Shape{s.batch, s.length, s.heads, s.m}, v.device()), l(Shape{s.batch, s.heads, s.length}, v.device());
  DISPATCH(v.device(), biased_softmax_attention_forward(y.data(), l.data(), q.data(), k.data(), v.data(), bias_of(bias),
                                                        lengths.data(), s));
  return record(op, {q, k, v, bias}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    std::vector<Tensor> d(2);
    if (has_scores)
      d = gradients_like({q, k, v});
    else
      d.emplace_back(v.shape(), v.device());
    d.push_back(bias.wants_grad() ? Tensor(bias.shape(), v.device()) : Tensor());
    DISPATCH(v.device(), biased_softmax_attention_backward(d[0].data(), d[1].data(), d[2].data(), d[3].data(),
                                                           dy.data(), y.data(), l.data(), q.data(), k.data(), v.data(),
                                                           bias_of(bias), lengths.data(), s));
    return d;
  });
}

}  // namespace runnel
