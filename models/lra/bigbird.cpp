// BigBird (Zaheer et al. 2020), its block form: a query block sees its neighbours in a window, the first and the last
// block, which are global, and some blocks drawn at random; the global blocks see everything. The random blocks differ
// from layer to layer and with the number of a sequence's own blocks, padding left out. The causal form, which the
// paper does not have, hides later keys; its last block is not global, since which one it is depends on what follows.
#include <algorithm>
#include <set>

#include "engine/check.h"
#include "models/attention_kinds.h"
#include "models/lra/block_sparse.h"

namespace runnel {
namespace {

struct BigBird {
  int64_t window, random;  // blocks
  bool causal;
  Key key;

  std::vector<int32_t> operator()(int64_t r, BlockSparseAttention::Blocks count) const {
    if (r >= count.queries) return {};
    const int64_t last = causal ? r : count.keys - 1;
    std::set<int32_t> seen;
    const auto add = [&](int64_t c) {
      return c >= 0 && c <= last && c < count.keys && seen.insert(static_cast<int32_t>(c)).second;
    };
    const bool is_global = r == 0 || (!causal && r == count.queries - 1);
    for (int64_t c = 0; is_global && c <= last; ++c) add(c);
    for (int64_t c = r - window / 2; c <= r + window / 2; ++c) add(c);
    add(0);
    if (!causal) add(last);
    uint64_t draw = 0;
    const Key own = key.fold(static_cast<uint64_t>(r));
    for (int64_t drawn = 0; drawn < random && std::ssize(seen) < std::min(last + 1, count.keys);)
      drawn += add(own.below(draw++, static_cast<uint32_t>(last + 1)));
    return {seen.begin(), seen.end()};
  }
};

}  // namespace

namespace kinds {
extern const AttentionKind bigbird;
const AttentionKind bigbird{
    .name = "bigbird",
    .help = "BigBird: softmax attention to a window of blocks, global blocks and random blocks",
    .paper = "Zaheer et al. 2020",
    .causal = true,
    .full = true,
    .options = {{"bigbird-block", int64_t{64}, in_range(1, 4096), "positions of a block of bigbird"},
                {"bigbird-window", int64_t{3}, in_range(1, 4095), "blocks of bigbird's window, an odd number"},
                {"bigbird-random", int64_t{3}, in_range(0, 4096), "random blocks that a block of bigbird sees"}},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds& keys,
               Device device) -> std::unique_ptr<AttentionLayer> {
      const auto number = [&](const char* name) { return std::get<int64_t>(values.at(name)); };
      const int64_t block = number("bigbird-block"), window = number("bigbird-window");
      check<UsageError>(window % 2 == 1, "--bigbird-window ", window,
                        " is even; the window reaches as far to the left as to the right");
      return std::make_unique<BlockSparseAttention>(shape.causal, BlockSparseAttention::Blocks{block, block},
                                                    BigBird{window, number("bigbird-random"), shape.causal, keys.fixed},
                                                    device, std::optional<Band>(), !shape.causal);
    }};
}  // namespace kinds

}  // namespace runnel
