// Local attention, as in Long Range Arena (Tay et al. 2021): the sequence is cut into blocks, and softmax attention
// sees the keys of the query's own block. Decoding keeps the keys and values of one block, so its memory is constant.
#include "models/attention/key_value_cache.h"
#include "models/attention_kinds.h"
#include "models/lra/block_sparse.h"

namespace runnel {
namespace {

class LocalAttention : public BlockSparseAttention {
 public:
  LocalAttention(const AttentionShape& shape, int64_t block, Device device)
      : BlockSparseAttention(shape.causal, {block, block}, own_block, device), shape_(shape), block_(block) {}

  std::unique_ptr<DecodeState> decode(const DecodeOptions& d) const override {
    return std::make_unique<KeyValueState>(shape_, d, block_, KeyValueState::Keeps::block);
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
    .options = {{"local-block", int64_t{64}, in_range(1, 4096), "positions of a block of local attention"}},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds&,
               Device device) -> std::unique_ptr<AttentionLayer> {
      return std::make_unique<LocalAttention>(shape, std::get<int64_t>(values.at("local-block")), device);
    }};
}  // namespace kinds

}  // namespace runnel
