// Causal linear attention without feature map and normaliser: Algorithm 1 of the paper, whose loops and derivation are
// in ops/cpu/attention/causal_product.cpp. The rule keeps q, k and v: backward computes the states again.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/attention/arguments.h"
#include "ops/kernels/linear_attention.h"
#include "ops/linear_attention.h"

namespace runnel {

Tensor causal_product(const Tensor& q, const Tensor& k, const Tensor& v) {
  const AttentionSizes sizes = check_attention("causal_product", q, k, v, {});
  Tensor y(v.shape(), v.device());
  DISPATCH(q.device(), causal_product_forward(y.data(), q.data(), k.data(), v.data(), sizes));
  return record("causal_product", {q, k, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dq(q.shape(), q.device()), dk(k.shape(), k.device()), dv(v.shape(), v.device());
    DISPATCH(q.device(),
             causal_product_backward(dq.data(), dk.data(), dv.data(), dy.data(), q.data(), k.data(), v.data(), sizes));
    return {dq, dk, dv};
  });
}

}  // namespace runnel
