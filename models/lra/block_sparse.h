// Kinds whose queries see blocks of keys by a fixed rule, or those keys of them that lie in a band: local, sparse,
// bigbird, longformer.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "models/attention.h"
#include "ops/softmax_attention.h"

namespace runnel {

class BlockSparseAttention : public AttentionLayer {
 public:
  // The key blocks that query block r sees, ascending. The op hides later keys in causal layers. The rule of a causal
  // layer gives query block r the same blocks up to its own whatever follows, since decoding computes prefixes. A rule
  // that depends on the number of blocks is by length: it is asked for that of each sequence without its padding.
  struct Blocks {
    int64_t queries, keys;
  };
  using Rule = std::function<std::vector<int32_t>(int64_t r, Blocks count)>;

  BlockSparseAttention(bool causal, Blocks positions, Rule rule, Device device, std::optional<Band> band = {},
                       bool by_length = false)
      : causal_(causal),
        positions_(positions),
        rule_(std::move(rule)),
        device_(device),
        band_(band),
        by_length_(by_length) {}

  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context) const override {
    const auto blocks = [](const Tensor& x, int64_t positions) { return (x.shape()[1] + positions - 1) / positions; };
    return softmax_attention(q, k, v, {causal_, context.lengths},
                             {.pattern = pattern(blocks(q, positions_.queries), blocks(k, positions_.keys))});
  }

 private:
  // Kept for as long as the layer lives, since captured graphs (engine/replay.h) read it.
  const BlockPattern& pattern(int64_t query_blocks, int64_t key_blocks) const {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = patterns_.try_emplace({query_blocks, key_blocks});
    if (is_new) {
      std::vector<std::vector<int32_t>> seen;
      for (int64_t n = by_length_ ? 0 : key_blocks; n <= key_blocks; ++n)
        for (int64_t r = 0; r < query_blocks; ++r)
          seen.push_back(rule_(r, {by_length_ ? std::min(n, query_blocks) : query_blocks, n}));
      found->second = std::make_unique<BlockPattern>(positions_.queries, positions_.keys, seen, key_blocks, device_,
                                                     band_, by_length_);
    }
    return *found->second;
  }

  bool causal_;
  Blocks positions_;  // in a block
  Rule rule_;
  Device device_;
  std::optional<Band> band_;
  bool by_length_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<int64_t, int64_t>, std::unique_ptr<const BlockPattern>> patterns_;
};

}  // namespace runnel
