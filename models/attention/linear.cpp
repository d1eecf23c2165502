// Linear attention (Katharopoulos et al. 2020), eq. 4 to 12: with a feature map phi that makes positive numbers,
//   y_i = phi(q_i)^T S / (phi(q_i)^T Z),   S = sum_j phi(k_j) v_j^T,   Z = sum_j phi(k_j),
// where j runs over the positions up to i (causal) or over all. Decoding keeps S and Z, whose size is constant. With
// --convolution, q, k and v first go through a short convolution.
#include "models/attention/recurrent_state.h"
#include "models/attention/short_convolutions.h"
#include "models/attention_kinds.h"

namespace runnel {
namespace {

class LinearAttention : public AttentionLayer {
 public:
  LinearAttention(const AttentionShape& shape, FeatureMap map, ShortConvolutions convolutions)
      : shape_(shape), map_(map), convolutions_(std::move(convolutions)) {}

  Tensor operator()(const Tensor& q0, const Tensor& k0, const Tensor& v0,
                    const AttentionContext& context) const override {
    std::vector<Tensor>* const memory = context.memory;
    const auto [q, k, v] = convolutions_({q0, k0, v0}, memory ? std::span(*memory).subspan(2) : std::span<Tensor>());
    if (!memory) return linear_attention(q, k, v, {shape_.causal, context.lengths}, map_);
    const auto [y, next] = linear_attention(q, k, v, AttentionState{memory->at(0), memory->at(1)}, map_);
    memory->at(0) = next.s;
    memory->at(1) = next.z;
    return y;
  }
  Parameters parameters() const override {
    Parameters all;
    convolutions_.append_parameters(all);
    return all;
  }
  std::vector<Tensor> empty_memory(int64_t batch, Device device) const override { return memory({batch, 0, device}); }
  std::unique_ptr<DecodeState> decode(const DecodeOptions& decoding) const override {
    const auto step = [map = map_, convolutions = convolutions_, precision = decoding.precision](
                          const Tensor& q0, const Tensor& k0, const Tensor& v0, const Tensor&,
                          std::vector<Tensor>& memory) {
      const auto [q, k, v] = convolutions.step({q0, k0, v0}, std::span(memory).subspan(2));
      AttentionState state{memory[0], memory[1], precision};
      return linear_attention_step(q, k, v, state, map);
    };
    return std::make_unique<RecurrentState>(
        memory(decoding), step,
        RecurrentState::Options{.of_s = decoding.precision, .is_layers = decoding.precision == Precision::f32});
  }
  // The initial values of models/local_heads.h are those of a layer without convolutions.
  bool has_exponential_features() const override {
    return map_ == FeatureMap::elu_plus_one && convolutions_.weights.empty();
  }

 private:
  std::vector<Tensor> memory(const DecodeOptions& d) const {
    std::vector<Tensor> all = zero_sums(d, shape_.heads, shape_.head_dim, shape_.head_dim);
    convolutions_.append_memory(all, d.batch, d.device);
    return all;
  }

  AttentionShape shape_;
  FeatureMap map_;
  ShortConvolutions convolutions_;
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
    .options = {{"feature-map", std::string("elu"), one_of({"elu", "relu"}),
                 "feature map of linear attention: elu(x) + 1, as in the paper, or max(x, 0) + 0.001"},
                ShortConvolutions::option()},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds& keys,
               Device device) -> std::unique_ptr<AttentionLayer> {
      const bool elu = std::get<std::string>(values.at("feature-map")) == "elu";
      return std::make_unique<LinearAttention>(
          shape, elu ? FeatureMap::elu_plus_one : FeatureMap::relu,
          ShortConvolutions(shape, ShortConvolutions::positions(values, 0), false, keys.init, device));
    }};
}  // namespace kinds

}  // namespace runnel
