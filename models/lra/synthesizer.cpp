// Synthesizer (Tay et al. 2020): softmax attention whose logits s_ij do not come from comparing positions,
//
//   random:      s_ij = R_ij                       R [H,max_length,max_length] is learned
//   factorised:  s_ij = r_i . c_j                  r and c [max_length,H,rank] are learned
//   dense:       s_ij = relu(W x_i + b) . c_j      x the layer's input, W [H E,D], b [H E] and c [max_length,H,E]
//   learned
//
// to which q_i . k_j / sqrt(E) is added, unless the dot product is left out. A product of two factors is a part of the
// dot product of longer queries and keys,
//
//   [q_i, r_i] . [k_j, c_j] = q_i . k_j + r_i . c_j
//
// so factorised and dense are softmax attention, which divides by the square root of the length of the vectors, with
// factors to make up for that: their logits are never stored.
#include <cmath>

#include "engine/check.h"
#include "models/attention_kinds.h"
#include "models/layers.h"
#include "ops/elementwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/softmax_attention.h"

namespace runnel {
namespace {

Tensor random_numbers(Shape shape, Key key, Device device) {  // uniform in +-1/sqrt(columns)
  Tensor x = random_linear(shape[0] * shape[1], shape[2], key, device).weight;
  return detach(x).viewed_as(shape).set_wants_grad();
}

// y, of which q and k get zeros as gradients: an optimizer asks for those of all projections. A sum of no numbers is 0,
// whatever q and k hold.
Tensor independent_of(const Tensor& q, const Tensor& k, const Tensor& y) {
  return add(y, add(sum(slice(q, 0, 0, 0)), sum(slice(k, 0, 0, 0))));
}

class SynthesizerAttention : public AttentionLayer {
 public:
  SynthesizerAttention(const AttentionShape& shape, bool has_dot) : shape_(shape), has_dot_(has_dot) {
    check(shape.max_length > 0, "attention: synthesizer learns logits of positions and needs max_length, their number");
  }

  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context) const override {
    const int64_t length = q.shape()[1];
    check(length == v.shape()[1], "attention: synthesizer: ", length, " queries and ", v.shape()[1],
          " keys are not of one sequence");
    check(length <= shape_.max_length, "attention: synthesizer has learned logits of ", shape_.max_length,
          " positions, and a sequence has ", length, "; make the layer with a larger max_length");
    const AttentionMask mask{false, context.lengths};
    return has_dot_ ? attend(q, k, v, context, mask) : independent_of(q, k, attend(q, k, v, context, mask));
  }

 protected:
  virtual Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context,
                        const AttentionMask& mask) const = 0;
  // With the logits r_i . c_j: r [B,L,H,n] or [max_length,H,n], c [max_length,H,n].
  Tensor attend_with(const Tensor& r, const Tensor& c, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionMask& mask) const {
    const float n = static_cast<float>(c.shape()[-1]), e = has_dot_ ? static_cast<float>(shape_.head_dim) : 0;
    const auto nothing = [](const Tensor& x) { return Tensor(x.shape().with_last(0), x.device()); };
    const Tensor left = has_dot_ ? scale(q, std::sqrt((e + n) / e)) : nothing(q), right = scale(r, std::sqrt(e + n));
    const Tensor queries = r.shape().rank() == 4 ? concat({left, right}, -1) : concat_shared(left, right);
    return softmax_attention(queries, concat_shared(has_dot_ ? k : nothing(k), c), v, mask);
  }

  AttentionShape shape_;
  bool has_dot_;
};

class RandomSynthesizer : public SynthesizerAttention {
 public:
  RandomSynthesizer(const AttentionShape& shape, bool has_dot, Key init, Device device)
      : SynthesizerAttention(shape, has_dot),
        logits_(random_numbers(Shape{shape.heads, shape.max_length, shape.max_length}, init, device)) {}
  Parameters parameters() const override { return {{"logits", logits_}}; }

 private:
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext&,
                const AttentionMask& mask) const override {
    return has_dot_ ? softmax_attention(q, k, v, mask, {.bias = logits_})
                    : softmax_attention({}, {}, v, mask, {.bias = logits_});
  }
  Tensor logits_;  // [H,max_length,max_length]
};

class FactorisedSynthesizer : public SynthesizerAttention {
 public:
  FactorisedSynthesizer(const AttentionShape& shape, bool has_dot, int64_t rank, Key init, Device device)
      : SynthesizerAttention(shape, has_dot),
        query_factors_(random_numbers(Shape{shape.max_length, shape.heads, rank}, init.fold(0), device)),
        key_factors_(random_numbers(Shape{shape.max_length, shape.heads, rank}, init.fold(1), device)) {}
  Parameters parameters() const override { return {{"query_factors", query_factors_}, {"key_factors", key_factors_}}; }

 private:
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext&,
                const AttentionMask& mask) const override {
    return attend_with(query_factors_, key_factors_, q, k, v, mask);
  }
  Tensor query_factors_, key_factors_;  // [max_length,H,rank]
};

class DenseSynthesizer : public SynthesizerAttention {
 public:
  DenseSynthesizer(const AttentionShape& shape, bool has_dot, Key init, Device device)
      : SynthesizerAttention(shape, has_dot),
        hidden_(random_linear(shape.heads * shape.head_dim, shape.width, init.fold(0), device)),
        key_factors_(random_numbers(Shape{shape.max_length, shape.heads, shape.head_dim}, init.fold(1), device)) {}
  Parameters parameters() const override {
    Parameters all;
    append(all, "hidden", hidden_);
    all.push_back({"key_factors", key_factors_});
    return all;
  }

 private:
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionContext& context,
                const AttentionMask& mask) const override {
    check(bool(context.input), "attention: the dense synthesizer needs the layer's input");
    const Tensor hidden = reshape(hidden_(context.input, Activation::relu), q.shape());
    return attend_with(hidden, key_factors_, q, k, v, mask);
  }
  Linear hidden_;       // D -> H E
  Tensor key_factors_;  // [max_length,H,E]
};

}  // namespace

namespace kinds {
extern const AttentionKind synthesizer;
const AttentionKind synthesizer{
    .name = "synthesizer",
    .help = "softmax over learned logits of positions, with or without the dot product",
    .paper = "Tay et al. 2020",
    .causal = false,
    .full = true,
    .options = {{"synthesizer", std::string("random"), one_of({"random", "factorised", "dense"}),
                 "synthesizer's logits: a learned number for each pair of positions, a product of two learned "
                 "factors, or computed from the query's position alone"},
                {"synthesizer-dot", std::string("yes"), one_of({"yes", "no"}),
                 "whether synthesizer adds the dot product of queries and keys to its logits"},
                {"synthesizer-rank", int64_t{32}, in_range(1, 4096), "rank of the factorised synthesizer's logits"}},
    .variants = {{"synthesizer-random", {{"synthesizer", std::string("random")}}},
                 {"synthesizer-factorised", {{"synthesizer", std::string("factorised")}}},
                 {"synthesizer-dense", {{"synthesizer", std::string("dense")}}}},
    .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds& keys,
               Device device) -> std::unique_ptr<AttentionLayer> {
      const std::string& logits = std::get<std::string>(values.at("synthesizer"));
      const bool has_dot = std::get<std::string>(values.at("synthesizer-dot")) == "yes";
      if (logits == "random") return std::make_unique<RandomSynthesizer>(shape, has_dot, keys.init, device);
      if (logits == "dense") return std::make_unique<DenseSynthesizer>(shape, has_dot, keys.init, device);
      return std::make_unique<FactorisedSynthesizer>(shape, has_dot, std::get<int64_t>(values.at("synthesizer-rank")),
                                                     keys.init, device);
    }};
}  // namespace kinds

}  // namespace runnel
