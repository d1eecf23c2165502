// Linear attention (Katharopoulos et al. 2020), eq. 4 to 12: with a feature map phi that makes positive numbers,
//   y_i = phi(q_i)^T S / (phi(q_i)^T Z),   S = sum_j phi(k_j) v_j^T,   Z = sum_j phi(k_j),
// where j runs over the positions up to i (causal) or over all. Decoding keeps S and Z, whose size is constant.
#include "models/attention/recurrent_state.h"

#include "ops/linear_attention.h"

namespace runnel {
namespace {

class LinearAttention : public AttentionLayer {
 public:
  LinearAttention(const AttentionShape& shape, FeatureMap map) : shape_(shape), map_(map) {}

  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context) const override {
    return linear_attention(q, k, v, {shape_.causal, context.lengths}, map_);
  }
  std::unique_ptr<DecodeState> decode(const DecodeOptions& decoding) const override {
    const auto step = [map = map_](const Tensor& q, const Tensor& k, const Tensor& v, AttentionState& state) {
      return linear_attention_step(q, k, v, state, map);
    };
    return std::make_unique<RecurrentState>(decoding, shape_.heads, shape_.head_dim, shape_.head_dim, step);
  }
  bool has_exponential_features() const override { return map_ == FeatureMap::elu_plus_one; }

 private:
  AttentionShape shape_;
  FeatureMap map_;
};

}  // namespace

namespace kinds {
extern const AttentionKind linear;
const AttentionKind linear{
    .name = "linear",
    .help = "linear attention: a state of constant size instead of a growing cache",
    .paper = "Katharopoulos et al. 2020",
    .causal = true,
    .full = true,
    .shared_query_key = false,
    .options = {{"feature-map", std::string("elu"), one_of({"elu", "relu"}),
                 "feature map of linear attention: elu(x) + 1, as in the paper, or max(x, 0) + 0.001"}},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds&,
               Device) -> std::unique_ptr<AttentionLayer> {
      const bool elu = std::get<std::string>(values.at("feature-map")) == "elu";
      return std::make_unique<LinearAttention>(shape, elu ? FeatureMap::elu_plus_one : FeatureMap::relu);
    }};
}  // namespace kinds

}  // namespace runnel
