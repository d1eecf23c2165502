// Reformer's attention (Kitaev et al. 2020): positions are hashed into buckets and sorted by bucket, and a query sees
// the keys of its bucket in its chunk of the sorted sequence and in the chunk before. Keys are the queries, of unit
// length. It has no incremental form: decoding computes the whole prefix again.
#include "models/attention_kinds.h"

#include "engine/check.h"
#include "ops/lsh_attention.h"

namespace runnel {
namespace {

class LshAttention : public AttentionLayer {
 public:
  LshAttention(const AttentionShape& shape, const Lsh& lsh, Key fixed) : shape_(shape), lsh_(lsh), fixed_(fixed) {}

  Tensor operator()(const Tensor& q, const Tensor&, const Tensor& v, const AttentionContext& context) const override {
    return lsh_attention(q, v, {shape_.causal, context.lengths}, lsh_, context.key.value_or(fixed_));
  }
  bool shares_query_key() const override { return true; }

 private:
  AttentionShape shape_;
  Lsh lsh_;
  Key fixed_;  // of the rotations in evaluation
};

}  // namespace

namespace kinds {
extern const AttentionKind lsh;
const AttentionKind lsh{
    .name = "lsh",
    .help = "Reformer's attention by locality-sensitive hashing",
    .paper = "Kitaev et al. 2020",
    .causal = true,
    .full = true,
    // The authors' `bits` 32 are 64 buckets: the largest of 32 projections and their negatives.
    .options = {{"rounds", int64_t{4}, in_range(1, 64), "hashing rounds of lsh"},
                {"buckets", int64_t{64}, in_range(2, 4096), "buckets of lsh, an even number"},
                {"chunk", int64_t{32}, in_range(1, 256), "positions in a chunk of lsh's sorted sequence"}},
    .variants = {{"lsh-1", {{"rounds", int64_t{1}}}},
                 {"lsh-4", {{"rounds", int64_t{4}}}},
                 {"lsh-8", {{"rounds", int64_t{8}}}}},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds& keys,
               Device) -> std::unique_ptr<AttentionLayer> {
      const auto number = [&](const char* name) { return std::get<int64_t>(values.at(name)); };
      check<UsageError>(number("buckets") % 2 == 0, "--buckets ", number("buckets"),
                        " is odd; each projection makes two buckets, one for each sign");
      return std::make_unique<LshAttention>(shape, Lsh{number("rounds"), number("buckets"), number("chunk")},
                                            keys.fixed);
    }};
}  // namespace kinds

}  // namespace runnel
