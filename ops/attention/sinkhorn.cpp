// What Sparse Sinkhorn Attention (Tay et al. 2020) is made of: sums of blocks of positions, doubly stochastic matrices
// by Sinkhorn's normalisation, and blocks mixed by them.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/approximate_attention.h"
#include "ops/attention/arguments.h"
#include "ops/kernels/approximate_attention.h"

namespace runnel {
namespace {

// x [B,S,H,E]
BlockSizes check_blocks(const char* op, const Tensor& x, int64_t block, const Indices& lengths) {
  const Shape& shape = x.shape();
  check(shape.rank() == 4 && shape[3] > 0, op, ": x ", shape, " is not [B,S,H,E]");
  check(block > 0, op, ": a block of ", block, " positions");
  check_lengths(op, lengths, shape[0], shape[1]);
  return {shape[0], shape[1], shape[2], shape[3], block};
}

}  // namespace

Tensor block_sums(const Tensor& x, int64_t block, const Indices& lengths) {
  const Device device = device_of("block_sums", x, lengths);
  const BlockSizes s = check_blocks("block_sums", x, block, lengths);
  Tensor y(Shape{s.batch, s.blocks(), s.heads, s.width}, device);
  DISPATCH(device, block_sums_forward(y.data(), x.data(), lengths.data(), s));
  return record("block_sums", {x}, y, [=, shape = x.shape()](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(shape, device);
    DISPATCH(device, block_sums_backward(dx.data(), dy.data(), lengths.data(), s));
    return {dx};
  });
}

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

Tensor mix_blocks(const Tensor& p, const Tensor& x, int64_t block, const Indices& lengths) {
  const char* const op = "mix_blocks";
  const Device device = device_of(op, p, x, lengths);
  const BlockSizes s = check_blocks(op, x, block, lengths);
  check(p.shape() == Shape{s.batch, s.heads, s.blocks(), s.blocks()}, op, ": p ", p.shape(), " is not [", s.batch, ",",
        s.heads, ",", s.blocks(), ",", s.blocks(), "], as blocks of ", block, " positions of x ", x.shape(),
        " ask for");
  Tensor y(Shape{s.batch, s.blocks() * block + s.length, s.heads, s.width}, device);
  DISPATCH(device, mix_blocks_forward(y.data(), p.data(), x.data(), lengths.data(), s));
  return record(op, {p, x}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dp(p.shape(), device), dx(x.shape(), device);
    DISPATCH(device, mix_blocks_backward(dp.data(), dx.data(), dy.data(), p.data(), x.data(), lengths.data(), s));
    return {dp, dx};
  });
}

}  // namespace runnel
