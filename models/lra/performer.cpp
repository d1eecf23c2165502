// Performer (Choromanski et al. 2021): linear attention whose features are random and positive,
//   phi_c(x) = exp(w_c . x' - |x'|^2 / 2) / sqrt(F),  x' = x / E^(1/4),  w_c normal and orthogonal in blocks of E,
// so that phi(q) . phi(k) is exp(q . k / sqrt(E)) on average: an unbiased estimate of softmax attention. As in the
// paper the projection is redrawn in training; evaluation and decoding always use the same one. Left out: the
// stabiliser, a maximum that is subtracted before exp, which a causal state cannot know in advance.
#include "models/attention/recurrent_state.h"

#include "models/attention_kinds.h"
#include "ops/linear_attention.h"
#include "ops/lra/attention.h"

namespace runnel {
namespace {

class PerformerAttention : public AttentionLayer {
 public:
  PerformerAttention(const AttentionShape& shape, int64_t features, bool redraw, Key fixed, Device device)
      : shape_(shape),
        features_(features),
        redraw_(redraw),
        projection_(random_projection(features, shape.head_dim, fixed, device)) {}

  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context) const override {
    const Tensor projection =
        redraw_ && context.key ? random_projection(features_, shape_.head_dim, *context.key, q.device()) : projection_;
    return linear_attention(positive_random_features(q, projection), positive_random_features(k, projection), v,
                            {shape_.causal, context.lengths}, FeatureMap::identity);
  }
  std::unique_ptr<DecodeState> decode(const DecodeOptions& decoding) const override {
    const auto step = [w = projection_, precision = decoding.precision](const Tensor& q, const Tensor& k,
                                                                        const Tensor& v, const Tensor&,
                                                                        std::vector<Tensor>& memory) {
      AttentionState state{memory[0], memory[1], precision};
      return linear_attention_step(positive_random_features(q, w), positive_random_features(k, w), v, state,
                                   FeatureMap::identity);
    };
    return std::make_unique<RecurrentState>(zero_sums(decoding, shape_.heads, features_, shape_.head_dim), step,
                                            RecurrentState::Options{.of_s = decoding.precision, .is_layers = false});
  }

 private:
  AttentionShape shape_;
  int64_t features_;
  bool redraw_;
  Tensor projection_;  // [F,E], of evaluation
};

}  // namespace

namespace kinds {
extern const AttentionKind performer;
const AttentionKind performer{
    .name = "performer",
    .help = "Performer's estimate of softmax attention by positive random features",
    .paper = "Choromanski et al. 2021",
    .causal = true,
    .full = true,
    .options = {{"features", int64_t{128}, in_range(1, 4096), "random features of performer, per head"},
                {"redraw", std::string("yes"), one_of({"yes", "no"}),
                 "whether performer draws new random features for each training step"}},
    .variants = {},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds& keys,
               Device device) -> std::unique_ptr<AttentionLayer> {
      return std::make_unique<PerformerAttention>(shape, std::get<int64_t>(values.at("features")),
                                                  std::get<std::string>(values.at("redraw")) == "yes", keys.fixed,
                                                  device);
    }};
}  // namespace kinds

}  // namespace runnel
