// Softmax attention (eq. 2), and its decoding step with a KV cache. The rule keeps q, k, v, y and a number for each
// query and head, so memory grows with L and not with its square.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/attention/arguments.h"
#include "ops/checks.h"
#include "ops/kernels/softmax_attention.h"
#include "ops/softmax_attention.h"

namespace runnel {

Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                         Dropout dropout) {
  const AttentionSizes s = check_attention("softmax_attention", q, k, v, mask);
  check_dropout("softmax_attention", dropout);
  const Indices lengths = mask.lengths;
  Tensor y(q.shape().with_last(s.m), q.device()), l(Shape{s.batch, s.heads, s.length}, q.device());
  DISPATCH(q.device(),
           softmax_attention_forward(y.data(), l.data(), q.data(), k.data(), v.data(), lengths.data(), s, dropout));
  return record("softmax_attention", {q, k, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    std::vector<Tensor> d = gradients_like({q, k, v});
    DISPATCH(q.device(),
             softmax_attention_backward(d[0].data(), d[1].data(), d[2].data(), dy.data(), y.data(), l.data(), q.data(),
                                        k.data(), v.data(), lengths.data(), s, dropout));
    return d;
  });
}

Tensor softmax_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, KeyValueCache& cache,
                              const Indices& position) {
  const char* const op = "softmax_attention_step";
  AttentionSizes s = check_attention_step(op, q, k, v);
  check(cache.k.shape().rank() == 4 && cache.v.shape().rank() == 4, op, ": the cache is empty");
  s.key_length = cache.v.shape()[2];
  check(cache.k.shape() == Shape{s.batch, s.heads, s.e, s.key_length} &&
            cache.v.shape() == Shape{s.batch, s.heads, s.key_length, s.m},
        op, ": a cache of k ", cache.k.shape(), " and v ", cache.v.shape(), " does not match q ", q.shape(), " and v ",
        v.shape());
  check(position.size() == 1, op, ": position ", position.shape(), " is not one number");
  device_of(op, q, k, v, cache.k, cache.v, position);
  if (q.device() == Device::cpu)
    check(position.data()[0] >= 0 && (cache.wraps || position.data()[0] < s.key_length), op, ": position ",
          position.data()[0], " is not in a cache of ", s.key_length);
  check(q.device() == Device::cpu || s.m <= 256, op, ": v ", v.shape(), " has more than 256 columns");
  Tensor y(v.shape(), v.device());
  DISPATCH(q.device(), softmax_attention_step(y.data(), cache.k.data(), cache.v.data(), q.data(), k.data(), v.data(),
                                              position.data(), s));
  return y;
}

}  // namespace runnel
