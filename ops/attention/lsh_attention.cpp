// Reformer's attention by locality-sensitive hashing (Kitaev et al. 2020): positions are hashed and sorted once, and
// the rule keeps their order. The choice of buckets has no gradient.
#include <limits>
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/attention/arguments.h"
#include "ops/kernels/lsh_attention.h"
#include "ops/lsh_attention.h"

namespace runnel {

Tensor lsh_attention(const Tensor& q, const Tensor& v, const AttentionMask& mask, const Lsh& lsh, Key rotations) {
  const AttentionSizes s = check_attention("lsh_attention", q, q, v, mask);
  check(s.e <= lsh_most && s.m <= lsh_most, "lsh_attention: q ", q.shape(), " and v ", v.shape(),
        " must have from 1 to ", lsh_most, " columns");
  check(s.length <= std::numeric_limits<int32_t>::max() - lsh_most, "lsh_attention: q ", q.shape(), " is too long");
  check(lsh.rounds >= 1, "lsh_attention: rounds must be at least 1, not ", lsh.rounds);
  check(lsh.buckets >= 2 && lsh.buckets <= lsh_most_buckets && lsh.buckets % 2 == 0,
        "lsh_attention: buckets must be an even number from 2 to ", lsh_most_buckets, ", not ", lsh.buckets);
  check(lsh.chunk >= 1 && lsh.chunk <= lsh_most, "lsh_attention: chunk must be from 1 to ", lsh_most, ", not ",
        lsh.chunk);
  const Device device = q.device();
  const Indices lengths = mask.lengths;

  const Shape places{lsh.rounds, s.batch, s.heads, s.length};
  Indices order(places, device), begin(places, device), end(places, device);
  {
    Tensor rotation(Shape{lsh.rounds, s.heads, s.e, lsh.buckets / 2}, device);
    Indices buckets(places, device);
    DISPATCH(device, lsh_rotations(rotation.data(), rotations, rotation.size()));
    DISPATCH(device, lsh_hash(buckets.data(), q.data(), rotation.data(), s, lsh));
    DISPATCH(device, lsh_sort(order.data(), begin.data(), end.data(), buckets.data(), lengths.data(), s, lsh));
  }
  Tensor y(v.shape(), device), l(Shape{s.batch, s.heads, s.length}, device);
  DISPATCH(device, lsh_attention_forward(y.data(), l.data(), q.data(), v.data(),
                                         {order.data(), begin.data(), end.data()}, lengths.data(), s, lsh));
  return record("lsh_attention", {q, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    std::vector<Tensor> d = gradients_like({q, v});
    DISPATCH(device, lsh_attention_backward(d[0].data(), d[1].data(), dy.data(), y.data(), l.data(), q.data(), v.data(),
                                            {order.data(), begin.data(), end.data()}, lengths.data(), s, lsh));
    return d;
  });
}

}  // namespace runnel
