// Sparse Transformer's fixed pattern (Child et al. 2019, section 4.2): positions are cut into blocks of `stride`, and a
// query sees its own block and the last `summary` positions of every block, which can summarise their block for the
// next layer. All heads see the union of both.
#include <numeric>

#include "engine/check.h"
#include "models/attention_kinds.h"
#include "models/lra/block_sparse.h"

namespace runnel {

namespace kinds {
extern const AttentionKind sparse;
const AttentionKind sparse{
    .name = "sparse",
    .help = "Sparse Transformer's fixed pattern: own block, and the last positions of every block",
    .paper = "Child et al. 2019",
    .causal = true,
    .full = true,
    .options = {{"stride", int64_t{50}, in_range(2, 4096), "positions of a block of sparse attention"},
                {"summary", int64_t{10}, in_range(1, 4095),
                 "last positions of each of sparse's blocks, which every query sees; fewer than --stride"}},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds&,
               Device device) -> std::unique_ptr<AttentionLayer> {
      const int64_t stride = std::get<int64_t>(values.at("stride")), summary = std::get<int64_t>(values.at("summary"));
      check<UsageError>(summary < stride, "--summary ", summary, " is not less than --stride ", stride);
      const int64_t key_block = std::gcd(stride, summary), each = stride / key_block;
      const int64_t summaries = summary / key_block;  // key blocks; `each` is those of a block
      const auto rule = [=](int64_t r, BlockSparseAttention::Blocks count) {
        std::vector<int32_t> seen;
        for (int64_t c = 0; c < count.keys; ++c)
          if (c / each == r || c % each >= each - summaries) seen.push_back(static_cast<int32_t>(c));
        return seen;
      };
      return std::make_unique<BlockSparseAttention>(shape.causal, BlockSparseAttention::Blocks{stride, key_block}, rule,
                                                    device);
    }};
}  // namespace kinds

}  // namespace runnel
