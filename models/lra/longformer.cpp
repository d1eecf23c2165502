// Longformer (Beltagy et al. 2020): softmax attention in a sliding window, half of which lies on each side, and some
// global tokens, here the first positions. All queries see the global keys; global queries see all keys, with queries,
// keys and values of projections of their own. The causal form has the left half of the window and no global tokens, as
// the paper's language models; it decodes with the keys and values of the window, so its memory is constant.
#include <algorithm>

#include "engine/check.h"
#include "models/attention/key_value_cache.h"
#include "models/attention_kinds.h"
#include "models/layers.h"
#include "models/lra/block_sparse.h"
#include "ops/linear.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

constexpr int64_t block = 64;  // positions: a tile of the CPU's kernels, two of CUDA's

// The blocks that some query of a block sees in part.
struct SlidingWindow {
  Band band;
  bool causal;

  std::vector<int32_t> operator()(int64_t r, BlockSparseAttention::Blocks count) const {
    const int64_t first = std::max<int64_t>(0, r * block - band.reach) / block;
    const int64_t last = causal ? r : std::min(count.keys - 1, ((r + 1) * block - 1 + band.reach) / block);
    const int64_t global = (band.global + block - 1) / block;
    std::vector<int32_t> seen;
    for (int64_t c = 0; c <= std::min(count.keys - 1, std::max(last, global - 1)); ++c)
      if (c < global || (c >= first && c <= last)) seen.push_back(static_cast<int32_t>(c));
    return seen;
  }
};

class Longformer : public BlockSparseAttention {
 public:
  Longformer(const AttentionShape& shape, Band band, Key init, Device device)
      : BlockSparseAttention(shape.causal, {block, block}, SlidingWindow{band, shape.causal}, device, band),
        shape_(shape),
        band_(band) {
    if (band.global == 0) return;
    const auto layer = [&](uint64_t number) {
      return random_linear(shape.heads * shape.head_dim, shape.width, init.fold(number), device);
    };
    query_ = layer(0), key_ = layer(1), value_ = layer(2);
    stack_parameters({&key_, &value_});
  }

  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context) const override {
    const Tensor y = BlockSparseAttention::operator()(q, k, v, context);
    const int64_t global = std::min(band_.global, q.shape()[1]);
    if (global == 0) return y;
    const Tensor& x = context.input;
    const auto split = [&](const Tensor& t) {
      return reshape(t, Shape{t.shape()[0], t.shape()[1], shape_.heads, shape_.head_dim});
    };
    const std::vector<Tensor> kv = linear(x, {key_.weight, value_.weight}, {key_.bias, value_.bias});
    const Tensor first = softmax_attention(split(query_(slice(x, 1, 0, global))), split(kv[0]), split(kv[1]),
                                           {.causal = false, .lengths = context.lengths});
    return concat({first, slice(y, 1, global, y.shape()[1] - global)}, 1);
  }
  Parameters parameters() const override {
    Parameters all;
    if (band_.global == 0) return all;
    append(all, "global_query_projection", query_);
    append(all, "global_key_projection", key_);
    append(all, "global_value_projection", value_);
    return all;
  }
  std::unique_ptr<DecodeState> decode(const DecodeOptions& d) const override {
    return std::make_unique<KeyValueState>(shape_, d, std::min(band_.reach + 1, d.capacity),
                                           KeyValueState::Keeps::last);
  }

 private:
  AttentionShape shape_;
  Band band_;
  Linear query_, key_, value_;  // of global queries
};

}  // namespace

namespace kinds {
extern const AttentionKind longformer;
const AttentionKind longformer{
    .name = "longformer",
    .help = "Longformer: softmax attention in a sliding window, and global tokens in its full form",
    .paper = "Beltagy et al. 2020",
    .causal = true,
    .full = true,
    .options = {{"longformer-window", int64_t{512}, in_range(2, 65536),
                 "positions of longformer's window, half of them on each side; causal: the left half"},
                {"longformer-global", int64_t{1}, in_range(0, 65536),
                 "first positions that see and are seen by all; causal models have none"}},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds& keys,
               Device device) -> std::unique_ptr<AttentionLayer> {
      const auto number = [&](const char* name) { return std::get<int64_t>(values.at(name)); };
      const int64_t window = number("longformer-window");
      check<UsageError>(window % 2 == 0, "--longformer-window ", window, " is odd; half of it lies on each side");
      return std::make_unique<Longformer>(shape, Band{window / 2, shape.causal ? 0 : number("longformer-global")},
                                          keys.init, device);
    }};
}  // namespace kinds

}  // namespace runnel
