// Gated linear attention. The rule keeps the inputs and the initial state, and computes the states once more.
#include "ops/gated_linear_attention.h"

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/attention/arguments.h"
#include "ops/kernels/gated_linear_attention.h"

namespace runnel {
namespace {

// Throws unless the tensors fit together.
GatedInputs check_gated(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Gates& gates,
                        const Tensor& state, const Indices& lengths) {
  const AttentionSizes s = check_attention(op, q, k, v, {.causal = true, .lengths = lengths});
  const Shape of_heads{s.batch, s.length, s.heads}, of_state{s.batch, s.heads, s.e, s.m};
  const bool per_channel = gates.decay.shape().rank() == 4;
  check(!gates.beta || gates.beta.shape() == of_heads, op, ": beta ", gates.beta.shape(), " is not ", of_heads);
  check(!gates.decay || gates.decay.shape() == of_heads || gates.decay.shape() == q.shape(), op, ": the decay ",
        gates.decay.shape(), " is neither ", of_heads, " nor ", q.shape());
  check(!state || state.shape() == of_state, op, ": the state ", state.shape(), " is not ", of_state);
  constexpr int64_t largest = 512;  // 32 columns of S or of its transpose lie in shared memory
  check(q.device() == Device::cpu || std::max(s.e, s.m) <= largest, op, ": on CUDA, heads are at most ", largest,
        " wide, and those of q ", q.shape(), " and v ", v.shape(), " are wider");
  device_of(op, q, gates.beta, gates.decay, state);
  return {q.data(),     k.data(),       v.data(),   gates.beta.data(), gates.decay.data(),
          state.data(), lengths.data(), gates.rule, per_channel,       s};
}

}  // namespace

GatedLinearResult gated_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Gates& gates,
                                         const Tensor& state, const Indices& lengths) {
  const auto arguments = [=] { return check_gated("gated_linear_attention", q, k, v, gates, state, lengths); };
  const GatedInputs in = arguments();
  const Device device = q.device();
  Tensor y(v.shape(), device), last(Shape{in.sizes.batch, in.sizes.heads, in.sizes.e, in.sizes.m}, device);
  DISPATCH(device, gated_linear_attention_forward(y.data(), last.data(), in));
  const std::vector<Tensor> inputs{q, k, v, gates.beta, gates.decay, state};
  const auto rule = [=](const std::vector<Tensor>& gradients) -> std::vector<Tensor> {
    const Tensor dy = gradients[0] ? gradients[0] : Tensor::full(v.shape(), 0, device);
    std::vector<Tensor> d;
    for (size_t i = 0; i < inputs.size(); ++i)
      d.push_back(i < 3 || inputs[i].wants_grad() ? Tensor(inputs[i].shape(), device) : Tensor());
    const GatedGradients to{d[0].data(), d[1].data(), d[2].data(), d[3].data(), d[4].data(), d[5].data()};
    DISPATCH(device, gated_linear_attention_backward(to, dy.data(), gradients[1].data(), arguments()));
    return d;
  };
  const std::vector<Tensor> results = record("gated_linear_attention", inputs, std::vector{y, last}, rule);
  return {results[0], results[1]};
}

Tensor gated_linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, const Gates& gates,
                                   Tensor& state) {
  const char* const op = "gated_linear_attention_step";
  check(q.shape().rank() == 4 && q.shape()[1] == 1, op, ": q ", q.shape(), " is not [B,1,H,E]");
  const std::pair<const char*, const Tensor*> arguments[] = {
      {"q", &q}, {"k", &k}, {"v", &v}, {"beta", &gates.beta}, {"decay", &gates.decay}, {"state", &state}};
  for (const auto& [name, x] : arguments) refuse_gradient(op, name, *x);
  const GatedInputs in = check_gated(op, q, k, v, gates, state, {});
  check(bool(state), op, ": the state is empty");
  Tensor y(v.shape(), q.device());
  DISPATCH(q.device(), gated_linear_attention_forward(y.data(), state.data(), in));
  return y;
}

}  // namespace runnel
