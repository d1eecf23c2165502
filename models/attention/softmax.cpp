// Softmax attention (Vaswani et al. 2017), eq. 2: y_i = sum_j p_ij v_j, p_ij = softmax over j of q_i . k_j / sqrt(E).
// Decoding keeps all keys and values so far ("stateful softmax" in the paper's tables): a KV cache.
#include "models/attention/key_value_cache.h"

#include "models/attention_kinds.h"
#include "ops/softmax_attention.h"

namespace runnel {
namespace {

class SoftmaxAttention : public AttentionLayer {
 public:
  SoftmaxAttention(const AttentionShape& shape, double dropout)
      : shape_(shape), dropout_(static_cast<float>(dropout)) {}

  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context) const override {
    const Dropout dropout = context.key ? Dropout{dropout_, *context.key} : Dropout{};
    return softmax_attention(q, k, v, {shape_.causal, context.lengths}, {.dropout = dropout});
  }
  std::unique_ptr<DecodeState> decode(const DecodeOptions& d) const override {
    return std::make_unique<KeyValueState>(shape_, d, d.capacity, KeyValueState::Keeps::all);
  }

 private:
  AttentionShape shape_;
  float dropout_;
};

}  // namespace

namespace kinds {
extern const AttentionKind softmax;
const AttentionKind softmax{.name = "softmax",
                            .help = "softmax attention, with memory linear in the length",
                            .paper = "Vaswani et al. 2017",
                            .causal = true,
                            .full = true,
                            .options = {{"attention-dropout", 0.0, in_range(0, 0.95),
                                         "dropout of softmax's attention weights; the authors train with 0.1"}},
                            .variants = {},
                            .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds&,
                                       Device) -> std::unique_ptr<AttentionLayer> {
                              return std::make_unique<SoftmaxAttention>(
                                  shape, std::get<double>(values.at("attention-dropout")));
                            }};
}  // namespace kinds

}  // namespace runnel
