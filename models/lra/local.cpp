// Local attention, as in Long Range Arena (Tay et al. 2021): the sequence is cut into blocks, and softmax attention
// sees the keys of the query's own block. Decoding keeps the keys and values of one block, so its memory is constant.
#include "models/lra/block_sparse.h"

#include "ops/shapes.h"
#include "ops/softmax_attention.h"

namespace runnel {
namespace {

class BlockCache : public DecodeState {
 public:
  BlockCache(KeyValueCache cache, Indices place) : cache_(std::move(cache)), place_(std::move(place)) {}

  Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Indices&) override {
    const Tensor y = softmax_attention_step(q, k, v, cache_, place_);
    advance(place_, cache_.v.shape()[2]);
    return y;
  }
  std::unique_ptr<DecodeState> select(const Indices& rows) const override {
    return std::make_unique<BlockCache>(KeyValueCache{gather(cache_.k, rows), gather(cache_.v, rows)},
                                        Indices(Shape{1}, place_.to_vector(), place_.device()));
  }
  int64_t bytes() const override { return (cache_.k.size() + cache_.v.size()) * static_cast<int64_t>(sizeof(float)); }

 private:
  KeyValueCache cache_;  // of the block that is being read
  Indices place_;        // [1]: of the next position in its block
};

class LocalAttention : public BlockSparseAttention {
 public:
  LocalAttention(const AttentionShape& shape, int64_t block, Device device)
      : BlockSparseAttention(shape.causal, {block, block}, own_block, device), shape_(shape), block_(block) {}

  std::unique_ptr<DecodeState> decode(const DecodeOptions& d) const override {
    const int64_t h = shape_.heads, e = shape_.head_dim;
    return std::make_unique<BlockCache>(
        KeyValueCache{Tensor(Shape{d.batch, h, e, block_}, d.device), Tensor(Shape{d.batch, h, block_, e}, d.device)},
        Indices(Shape{1}, {0}, d.device));
  }

 private:
  static std::vector<int32_t> own_block(int64_t r, Blocks count) {
    return r < count.keys ? std::vector{static_cast<int32_t>(r)} : std::vector<int32_t>{};
  }

  AttentionShape shape_;
  int64_t block_;
};

}  // namespace

namespace kinds {
extern const AttentionKind local;
const AttentionKind local{
    .name = "local",
    .help = "softmax attention within blocks of neighbouring positions",
    .paper = "Tay et al. 2021",
    .causal = true,
    .full = true,
    .shared_query_key = false,
    .options = {{"local-block", int64_t{64}, in_range(1, 4096), "positions of a block of local attention"}},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds&,
               Device device) -> std::unique_ptr<AttentionLayer> {
      return std::make_unique<LocalAttention>(shape, std::get<int64_t>(values.at("local-block")), device);
    }};
}  // namespace kinds

}  // namespace runnel
