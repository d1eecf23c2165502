// Doubly stochastic matrices by Sinkhorn's normalisation, for Sparse Sinkhorn Attention (Tay et al. 2020).
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/checks.h"
#include "ops/kernels/lra.h"
#include "ops/lra/attention.h"

namespace runnel {

Tensor sinkhorn(const Tensor& logits, int64_t iterations, int64_t block, const Indices& lengths) {
  const char* const op = "sinkhorn";
  const Shape& shape = logits.shape();
  const Device device = device_of(op, logits, lengths);
  check(shape.rank() == 4 && shape[3] >= shape[1], op, ": logits ", shape, " are not [B,N,H,at least N]");
  check(iterations > 0 && block > 0, op, ": ", iterations, " iterations, blocks of ", block, " positions");
  check_lengths(op, lengths, shape[0], shape[1] * block);
  const SinkhornSizes s{shape[0], shape[1], shape[2], shape[3], block, iterations};
  Tensor p(Shape{s.batch, s.heads, s.blocks, s.blocks}, device);
  DISPATCH(device, sinkhorn_forward(p.data(), logits.data(), lengths.data(), s));
  return record(op, {logits}, p, [=](const Tensor& dp) -> std::vector<Tensor> {
    Tensor dlogits(logits.shape(), device);
    DISPATCH(device, sinkhorn_backward(dlogits.data(), dp.data(), p.data(), logits.data(), lengths.data(), s));
    return {dlogits};
  });
}

}  // namespace runnel
