// Linformer (Wang et al. 2020): softmax attention to k learned sums of all keys, K' = E^T K, and of all values, V' =
// E^T V. E [longest sequence, k] is the layer's own; heads, keys and values share it (the paper's key-value sharing).
// It cannot be causal: each of the k keys is a sum over all positions.
#include <cmath>

#include "engine/check.h"
#include "models/attention_kinds.h"
#include "ops/linear.h"
#include "ops/shapes.h"
#include "ops/softmax_attention.h"

namespace runnel {
namespace {

class LinformerAttention : public AttentionLayer {
 public:
  LinformerAttention(int64_t max_length, int64_t rank, Key init, Device device) {
    // Xavier's uniform distribution with gain 1 / sqrt(2), as in the authors' code.
    const float bound = std::sqrt(3 / static_cast<float>(max_length + rank));
    std::vector<float> values(static_cast<size_t>(max_length * rank));
    for (size_t i = 0; i < values.size(); ++i) values[i] = bound * (2 * init.uniform(i) - 1);
    projection_ = Tensor(Shape{max_length, rank}, values, device).set_wants_grad();
  }

  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context) const override {
    check(k.shape()[1] <= projection_.shape()[0], "linformer: a sequence of ", k.shape()[1],
          " positions is longer than the layer's longest, ", projection_.shape()[0]);
    const Tensor rows = slice(projection_, 0, 0, k.shape()[1]);
    const auto project = [&](const Tensor& x) {
      const Shape& s = x.shape();
      const Tensor positions = reshape(zero_padding(x, context.lengths), Shape{s[0], s[1], s[2] * s[3]});
      return reshape(matmul(rows, positions, true), Shape{s[0], rows.shape()[1], s[2], s[3]});
    };
    return softmax_attention(q, project(k), project(v), {.causal = false});
  }
  Parameters parameters() const override { return {{"projection", projection_}}; }

 private:
  Tensor projection_;  // E
};

}  // namespace

namespace kinds {
extern const AttentionKind linformer;
const AttentionKind linformer{
    .name = "linformer",
    .help = "Linformer: softmax attention to a few learned sums of all keys; full form only",
    .paper = "Wang et al. 2020",
    .causal = false,
    .full = true,
    .options = {{"linformer-rank", int64_t{16}, in_range(1, 4096), "sums of keys that queries of linformer see"}},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds& keys,
               Device device) -> std::unique_ptr<AttentionLayer> {
      check(shape.max_length > 0, "linformer: the longest sequence is ", shape.max_length,
            " positions; it must be known and positive");
      return std::make_unique<LinformerAttention>(shape.max_length, std::get<int64_t>(values.at("linformer-rank")),
                                                  keys.init, device);
    }};
}  // namespace kinds

}  // namespace runnel
