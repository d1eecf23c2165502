// Sparse Sinkhorn Attention (Tay et al. 2020): positions are cut into N blocks; a block of queries sees the keys of its
// own block and those of one that is sorted to it, with softmax's weights. The sort is soft and learned: a linear layer
// makes logits [N,N] of the blocks' sums of keys, Sinkhorn's normalisation makes them a doubly stochastic P, and block
// r of the sorted keys, and of the sorted values, is sum_c P_rc x_c. Sorted blocks and keys lie one after another in
// one tensor of 2 N blocks, of which query block r sees r and N + r.
#include "engine/check.h"
#include "models/attention_kinds.h"
#include "models/layers.h"
#include "models/lra/block_sparse.h"
#include "ops/linear.h"
#include "ops/lra/attention.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

class SinkhornAttention : public AttentionLayer {
 public:
  SinkhornAttention(const AttentionShape& shape, int64_t block, int64_t iterations, Key init, Device device)
      : block_(block),
        iterations_(iterations),
        max_length_(shape.max_length),
        attend_(false, {block, block}, own_and_sorted, device),
        sort_(random_linear((shape.max_length + block - 1) / block, shape.head_dim, init, device).weight) {}

  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context) const override {
    const int64_t length = k.shape()[1], blocks = (length + block_ - 1) / block_;
    check(length <= max_length_, "sinkhorn: a sequence of ", length, " positions is longer than the layer's longest, ",
          max_length_);
    check(q.shape()[1] == length, "sinkhorn: q ", q.shape(), " and k ", k.shape(), " must have the same length");
    const Indices& lengths = context.lengths;
    const Tensor k_blocks = in_blocks(k, lengths);
    const Tensor p = sinkhorn(linear(sum(k_blocks, 2), sort_, {}), iterations_, block_, lengths);
    return attend_(q, sorted_and_own(p, k_blocks, k), sorted_and_own(p, in_blocks(v, lengths), v),
                   {.lengths = lengths ? shifted(lengths, blocks * block_) : Indices()});
  }
  Parameters parameters() const override { return {{"sort.weight", sort_}}; }

 private:
  static std::vector<int32_t> own_and_sorted(int64_t r, BlockSparseAttention::Blocks count) {
    return {static_cast<int32_t>(r), static_cast<int32_t>(count.queries + r)};
  }

  // [B,S,H,E] -> [B,N,block,H,E], 0 at padding
  Tensor in_blocks(const Tensor& x, const Indices& lengths) const {
    const Shape& s = x.shape();
    const int64_t blocks = (s[1] + block_ - 1) / block_, lacking = blocks * block_ - s[1];
    Tensor all = zero_padding(x, lengths);
    if (lacking > 0) all = concat({all, Tensor::full(Shape{s[0], lacking, s[2], s[3]}, 0, x.device())}, 1);
    return reshape(all, Shape{s[0], blocks, block_, s[2], s[3]});
  }
  // [B,H,N,N] [B,N,block,H,E] [B,S,H,E] -> [B,N block + S,H,E]
  static Tensor sorted_and_own(const Tensor& p, const Tensor& x_blocks, const Tensor& x) {
    const Shape& s = x_blocks.shape();
    const Tensor by_head = transpose(x_blocks, {0, 3, 1, 2, 4});  // [B,H,N,block,E]
    const Tensor mixed = matmul(p, reshape(by_head, Shape{s[0], s[3], s[1], s[2] * s[4]}));
    const Tensor sorted = transpose(reshape(mixed, by_head.shape()), {0, 2, 3, 1, 4});
    return concat({reshape(sorted, Shape{s[0], s[1] * s[2], s[3], s[4]}), x}, 1);
  }

  int64_t block_, iterations_, max_length_;
  BlockSparseAttention attend_;
  Tensor sort_;  // [blocks of the longest sequence, E]
};

}  // namespace

namespace kinds {
extern const AttentionKind sinkhorn;
const AttentionKind sinkhorn{
    .name = "sinkhorn",
    .help = "Sparse Sinkhorn Attention: own block, and a learned mixture of all blocks; full form only",
    .paper = "Tay et al. 2020",
    .causal = false,
    .full = true,
    .options = {{"sinkhorn-block", int64_t{64}, in_range(1, 4096), "positions of a block of sinkhorn"},
                {"sinkhorn-iterations", int64_t{5}, in_range(1, 100),
                 "how often sinkhorn normalises rows and columns of its mixture"}},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds& keys,
               Device device) -> std::unique_ptr<AttentionLayer> {
      const auto number = [&](const char* name) { return std::get<int64_t>(values.at(name)); };
      check(shape.max_length > 0, "sinkhorn: the longest sequence is ", shape.max_length,
            " positions; it must be known and positive");
      return std::make_unique<SinkhornAttention>(shape, number("sinkhorn-block"), number("sinkhorn-iterations"),
                                                 keys.init, device);
    }};
}  // namespace kinds

}  // namespace runnel
