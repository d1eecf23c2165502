// The family of gated linear attention, kinds that the paper's recurrence has become (docs/attention.md has them side
// by side). A layer gives each position a strength beta of its write and a decay g of the state, then
//
//   S_t = a_t S_{t-1} + beta_t k_t v_t^T                           additive rule, a_t = e^g_t
//   S_t = a_t S_{t-1} + beta_t k_t (v_t - (a_t S_{t-1})^T k_t)^T   delta rule
//   y_t = gate(x_t) RMSnorm(S_t^T q_t / sqrt(E))
//
// They differ in a line of `designs`. Left out: RetNet's rotation of queries and keys, since positions are told by the
// model's encoding; keys that are narrower than values.
#include <cmath>
#include <optional>

#include "models/attention/recurrent_state.h"
#include "models/attention/short_convolutions.h"
#include "models/attention_kinds.h"
#include "models/layers.h"
#include "ops/elementwise.h"
#include "ops/gated_linear_attention.h"
#include "ops/linear.h"
#include "ops/reductions.h"

namespace runnel {
namespace {

// g: 0; ln(1 - 2^(-5-h)); log sigmoid(z) / 16 of each key channel; or -A softplus(z + b), of a head or of each of its
// key channels, with A of a head and b learned. z is a projection of the layer's input.
enum class Decay { none, fixed, log_sigmoid, head, channel };

struct Design {
  const char *name, *help, *paper;
  UpdateRule rule;
  Decay decay;
  bool has_strength;         // beta = sigmoid(z); else 1
  int64_t convolution;       // positions; 0: none
  bool silu;                 // of q, k and v, behind the convolution
  bool unit_keys;            // q and k are divided by their lengths
  const char* output_gate;   // none, silu or sigmoid of a projection
  int64_t decay_bottleneck;  // width of a layer before the decay's projection; 0: none, -1: E
};
constexpr Design designs[]{
    {"retention", "a decay fixed for each head", "RetNet, Sun et al. 2023", UpdateRule::additive, Decay::fixed, false,
     0, false, false, "silu", 0},
    {"gla", "a learned decay of each key channel", "Yang et al. 2024", UpdateRule::additive, Decay::log_sigmoid, false,
     0, false, false, "silu", 16},
    {"deltanet", "a position replaces what its key finds, instead of adding to it",
     "Schlag et al. 2021, Yang et al. 2024", UpdateRule::delta, Decay::none, true, 4, true, true, "none", 0},
    {"gated-deltanet", "deltanet with a learned decay of each head", "Yang et al. 2025", UpdateRule::delta, Decay::head,
     true, 4, true, true, "silu", 0},
    {"kda", "Kimi delta attention: deltanet with a learned decay of each key channel", "Kimi Linear, 2025",
     UpdateRule::delta, Decay::channel, true, 4, true, true, "sigmoid", -1}};

Tensor uniform_vector(int64_t n, Key key, Device device, float (*f)(float uniform)) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = f(key.uniform(i));
  return Tensor(Shape{n}, values, device).set_wants_grad();
}

// Those that a kind has of the projections of the layer's input; `decay` is one of decay_input's outputs where that is
// there. Layers are Linear, or packed for decoding.
template <class Layer>
struct GateLayers {
  std::optional<Layer> strength, gate, decay_input, decay;  // [H,D] [H M,D] [n,D] [H or H E, n or D]
};
Tensor project(const Tensor& x, const Linear& layer) { return layer(x); }
Tensor project(const Tensor& x, const PackedLinear& layer) { return linear(x, layer); }
GateLayers<PackedLinear> packed(const GateLayers<Linear>& layers) {
  const auto pack = [](const std::optional<Linear>& layer) {
    return layer ? std::optional(PackedLinear(layer->weight, layer->bias)) : std::nullopt;
  };
  return {pack(layers.strength), pack(layers.gate), pack(layers.decay_input), pack(layers.decay)};
}

class GatedAttention : public AttentionLayer {
 public:
  GatedAttention(const Design& design, const AttentionShape& shape, const SettingValues& values, Key init,
                 Device device)
      : rule_(design.rule),
        decay_kind_(design.decay),
        shape_(shape),
        silu_(design.silu),
        gate_kind_(chosen(values, "output-gate", design.output_gate)),
        unit_keys_(chosen(values, "unit-keys", design.unit_keys ? "yes" : "no") == "yes"),
        convolutions_(shape, ShortConvolutions::positions(values, design.convolution), design.silu, init.fold(0),
                      device),
        norm_(Tensor::full(Shape{shape.head_dim}, 1, device).set_wants_grad()) {
    const int64_t h = shape.heads, channels = h * shape.head_dim, d = shape.width;
    if (design.has_strength) layers_.strength = random_linear(h, d, init.fold(1), device);
    if (gate_kind_ != "none") layers_.gate = random_linear(channels, d, init.fold(2), device);
    if (decay_kind_ == Decay::none) return;
    if (decay_kind_ == Decay::fixed) {
      std::vector<float> kept;
      for (int64_t n = 0; n < h; ++n) kept.push_back(static_cast<float>(std::log1p(-std::exp2(-5.0 - double(n)))));
      fixed_decay_ = Tensor(Shape{h}, kept, device);
      return;
    }
    const int64_t bottleneck = design.decay_bottleneck < 0 ? shape.head_dim : design.decay_bottleneck;
    if (bottleneck) layers_.decay_input = random_linear(bottleneck, d, init.fold(3), device);
    layers_.decay =
        random_linear(decay_kind_ == Decay::head ? h : channels, bottleneck ? bottleneck : d, init.fold(4), device);
    if (decay_kind_ == Decay::log_sigmoid) return;
    log_rate_ = uniform_vector(h, init.fold(5), device, [](float x) { return std::log(16 * x); });
    // softplus(bias) is log-uniform from 0.001 to 0.1: then most heads forget slowly.
    Tensor& bias = layers_.decay->bias;
    bias = uniform_vector(bias.size(), init.fold(6), device, [](float x) {
      const float dt = 1e-3f * std::pow(100.0f, x);
      return dt + std::log(-std::expm1(-dt));
    });
  }

  Tensor operator()(const Tensor& q0, const Tensor& k0, const Tensor& v0,
                    const AttentionContext& context) const override {
    std::vector<Tensor>* const memory = context.memory;
    const auto qkv =
        features(convolutions_({q0, k0, v0}, memory ? std::span(*memory).subspan(1) : std::span<Tensor>()));
    const auto [y, state] = gated_linear_attention(qkv[0], qkv[1], qkv[2], gates(context.input, layers_),
                                                   memory ? memory->at(0) : Tensor(), context.lengths);
    if (memory) memory->at(0) = state;
    return output(y, context.input, layers_);
  }

  Parameters parameters() const override {
    Parameters all;
    convolutions_.append_parameters(all);
    const auto append_layer = [&](const char* name, const std::optional<Linear>& layer) {
      if (layer) append(all, name, *layer);
    };
    append_layer("strength", layers_.strength);
    append_layer("decay_input", layers_.decay_input);
    append_layer("decay", layers_.decay);
    append_layer("gate", layers_.gate);
    if (log_rate_) all.push_back({"decay.log_rate", log_rate_});
    all.push_back({"norm.weight", norm_});
    return all;
  }

  std::vector<Tensor> empty_memory(int64_t batch, Device device) const override {
    std::vector<Tensor> all{Tensor::full(Shape{batch, shape_.heads, shape_.head_dim, shape_.head_dim}, 0, device)};
    convolutions_.append_memory(all, batch, device);
    return all;
  }
  std::unique_ptr<DecodeState> decode(const DecodeOptions& d) const override {
    const auto step = [layer = *this, layers = packed(layers_)](const Tensor& q0, const Tensor& k0, const Tensor& v0,
                                                                const Tensor& x, std::vector<Tensor>& memory) {
      const auto qkv = layer.features(layer.convolutions_.step({q0, k0, v0}, std::span(memory).subspan(1)));
      return layer.output(gated_linear_attention_step(qkv[0], qkv[1], qkv[2], layer.gates(x, layers), memory[0]), x,
                          layers);
    };
    return std::make_unique<RecurrentState>(empty_memory(d.batch, d.device), step, RecurrentState::Options{});
  }

 private:
  static std::string chosen(const SettingValues& values, const char* name, const char* published) {
    const std::string& value = std::get<std::string>(values.at(name));
    return value == "published" ? published : value;
  }

  ShortConvolutions::Projections features(ShortConvolutions::Projections qkv) const {
    if (silu_ && convolutions_.weights.empty())
      for (Tensor& x : qkv) x = silu(x);
    if (unit_keys_)
      for (const size_t n : {0, 1}) qkv[n] = l2_normalize(qkv[n]);
    qkv[0] = scale(qkv[0], 1 / std::sqrt(static_cast<float>(shape_.head_dim)));
    return qkv;
  }

  template <class Layer>
  Gates gates(const Tensor& x, const GateLayers<Layer>& layers) const {
    Gates all{.rule = rule_};
    if (layers.strength) all.beta = sigmoid(project(x, *layers.strength));
    const Shape per_head{x.shape()[0], x.shape()[1], shape_.heads};
    const Shape per_channel{x.shape()[0], x.shape()[1], shape_.heads, shape_.head_dim};
    if (decay_kind_ == Decay::fixed) all.decay = broadcast(fixed_decay_, per_head);
    if (!layers.decay) return all;
    Tensor z = project(layers.decay_input ? project(x, *layers.decay_input) : x, *layers.decay);
    if (decay_kind_ != Decay::head) z = reshape(z, per_channel);
    if (decay_kind_ == Decay::log_sigmoid) {
      all.decay = scale(softplus(-z), -1.0f / 16);
    } else {
      const Tensor rate = exp(log_rate_);
      all.decay = -multiply(softplus(z), decay_kind_ == Decay::head ? rate : reshape(rate, Shape{shape_.heads, 1}));
    }
    return all;
  }

  template <class Layer>
  Tensor output(const Tensor& y, const Tensor& x, const GateLayers<Layer>& layers) const {
    const Tensor normal = rms_norm(y, norm_);
    if (!layers.gate) return normal;
    const Tensor z = reshape(project(x, *layers.gate), y.shape());
    return multiply(normal, gate_kind_ == "silu" ? silu(z) : sigmoid(z));
  }

  UpdateRule rule_;
  Decay decay_kind_;
  AttentionShape shape_;
  bool silu_;
  std::string gate_kind_;
  bool unit_keys_;
  ShortConvolutions convolutions_;
  Tensor norm_;  // [M]
  GateLayers<Linear> layers_;
  Tensor fixed_decay_, log_rate_;  // [H] [H], ln A
};

template <size_t n>
AttentionKind kind() {
  return {.name = designs[n].name,
          .help = std::string(designs[n].help),
          .paper = designs[n].paper,
          .causal = true,
          .full = false,
          .options = {ShortConvolutions::option(),
                      {"unit-keys", std::string("published"), one_of({"published", "yes", "no"}),
                       "whether gated kinds divide queries and keys by their lengths; published: as in the kind's "
                       "paper"},
                      {"output-gate", std::string("published"), one_of({"published", "none", "silu", "sigmoid"}),
                       "gate of gated kinds' outputs, a function of a projection of the layer's input"}},
          .variants = {},
          .make = [](const AttentionShape& shape, const SettingValues& values, const AttentionSeeds& keys,
                     Device device) -> std::unique_ptr<AttentionLayer> {
            return std::make_unique<GatedAttention>(designs[n], shape, values, keys.init, device);
          }};
}

}  // namespace

namespace kinds {
extern const AttentionKind retention, gla, deltanet, gated_deltanet, kda;
const AttentionKind retention = kind<0>();
const AttentionKind gla = kind<1>();
const AttentionKind deltanet = kind<2>();
const AttentionKind gated_deltanet = kind<3>();
const AttentionKind kda = kind<4>();
}  // namespace kinds

}  // namespace runnel
