// Linear attention, causal or not: feature map, numerator and normaliser in one op (eq. 4-12). The rules keep q, k, v
// and y, and for a sequence that goes on from a state, that state; ops/cpu/attention/linear_attention.h has the
// derivation.
#include "ops/kernels/linear_attention.h"
#include "engine/check.h"
#include "engine/tape.h"
#include "ops/attention/arguments.h"
#include "ops/linear_attention.h"

namespace runnel {
namespace {

Shape shape_of_s(const AttentionSizes& s) { return {s.batch, s.heads, s.e, s.m}; }
Shape shape_of_z(const AttentionSizes& s) { return {s.batch, s.heads, s.e}; }
Tensor or_zeros(const Tensor& gradient, const Shape& shape, Device device) {
  return gradient ? gradient : Tensor::full(shape, 0, device);
}

// Throws unless the state is empty or fits.
void check_state(const char* op, const AttentionState& state, const AttentionSizes& s, const Tensor& q,
                 const Tensor& v) {
  const bool fits =
      state.s.shape() == shape_of_s(s).with_last(state_row(s.m, state.precision)) && state.z.shape() == shape_of_z(s);
  check(state.s && state.z ? fits : !state.s && !state.z, op, ": the state, S ", state.s.shape(), " and Z ",
        state.z.shape(), ", does not match q ", q.shape(), " and v ", v.shape());
  device_of(op, q, state.s, state.z);
}

}  // namespace

AttentionState zero_state(const Shape& of_s, Precision precision, Device device) {
  check(precision == Precision::f32 || precision == Precision::bf16, "zero_state: S is kept in f32 or bf16");
  return {Tensor::full(of_s.with_last(state_row(of_s[-1], precision)), 0, device),
          Tensor::full(of_s.without_last(), 0, device), precision};
}

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask, FeatureMap map) {
  const AttentionSizes s = check_attention("linear_attention", q, k, v, mask);
  const Indices lengths = mask.lengths;
  Tensor y(q.shape().with_last(s.m), q.device());
  if (s.causal)
    DISPATCH(q.device(), causal_linear_attention_forward(y.data(), nullptr, nullptr, q.data(), k.data(), v.data(),
                                                         nullptr, nullptr, lengths.data(), s, map));
  else
    DISPATCH(q.device(), full_linear_attention_forward(y.data(), q.data(), k.data(), v.data(), lengths.data(), s, map));
  return record("linear_attention", {q, k, v}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    std::vector<Tensor> d = gradients_like({q, k, v});
    if (s.causal)
      DISPATCH(q.device(), causal_linear_attention_backward(d[0].data(), d[1].data(), d[2].data(), nullptr, nullptr,
                                                            dy.data(), nullptr, nullptr, y.data(), q.data(), k.data(),
                                                            v.data(), nullptr, nullptr, lengths.data(), s, map));
    else
      DISPATCH(q.device(), full_linear_attention_backward(d[0].data(), d[1].data(), d[2].data(), dy.data(), y.data(),
                                                          q.data(), k.data(), v.data(), lengths.data(), s, map));
    return d;
  });
}

LinearAttentionResult linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionState& initial,
                                       FeatureMap map) {
  const AttentionSizes s = check_attention("linear_attention", q, k, v, {});
  check(initial.precision == Precision::f32, "linear_attention: a state in bf16 is for linear_attention_step");
  check_state("linear_attention", initial, s, q, v);
  const Device device = q.device();
  const Tensor s0 = initial.s, z0 = initial.z;
  Tensor y(v.shape(), device);
  AttentionState final{Tensor(shape_of_s(s), device), Tensor(shape_of_z(s), device)};
  DISPATCH(device, causal_linear_attention_forward(y.data(), final.s.data(), final.z.data(), q.data(), k.data(),
                                                   v.data(), s0.data(), z0.data(), nullptr, s, map));
  const auto rule = [=](const std::vector<Tensor>& gradients) -> std::vector<Tensor> {
    const Tensor dy = or_zeros(gradients[0], y.shape(), device);
    Tensor ds1, dz1, ds0, dz0, dq(q.shape(), device), dk(k.shape(), device), dv(v.shape(), device);
    if (gradients[1] || gradients[2]) {
      ds1 = or_zeros(gradients[1], shape_of_s(s), device);
      dz1 = or_zeros(gradients[2], shape_of_z(s), device);
    }
    if (s0.wants_grad() || z0.wants_grad()) ds0 = Tensor(s0.shape(), device), dz0 = Tensor(z0.shape(), device);
    DISPATCH(device, causal_linear_attention_backward(dq.data(), dk.data(), dv.data(), ds0.data(), dz0.data(),
                                                      dy.data(), ds1.data(), dz1.data(), y.data(), q.data(), k.data(),
                                                      v.data(), s0.data(), z0.data(), nullptr, s, map));
    return {dq, dk, dv, ds0, dz0};
  };
  const std::vector<Tensor> results =
      record("linear_attention", {q, k, v, s0, z0}, std::vector{y, final.s, final.z}, rule);
  return {results[0], {results[1], results[2]}};
}

Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, AttentionState& state, FeatureMap map) {
  const AttentionSizes s = check_attention_step("linear_attention_step", q, k, v);
  check_state("linear_attention_step", state, s, q, v);
  refuse_gradient("linear_attention_step", "state.s", state.s);
  refuse_gradient("linear_attention_step", "state.z", state.z);
  if (!state.s) state = zero_state(shape_of_s(s), state.precision, q.device());
  Tensor y(v.shape(), v.device());
  DISPATCH(q.device(), linear_attention_step(y.data(), state.s.data(), state.z.data(), q.data(), k.data(), v.data(), s,
                                             map, state.precision));
  return y;
}

}  // namespace runnel
