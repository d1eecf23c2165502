// The state of kinds that compute phi(q)^T S / phi(q)^T Z: eq. 16 to 20.
#pragma once
#include <functional>

#include "models/attention.h"
#include "ops/linear_attention.h"
#include "ops/shapes.h"

namespace runnel {

class RecurrentState : public DecodeState {
 public:
  using Step = std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v, AttentionState& state)>;

  RecurrentState(const DecodeOptions& d, int64_t heads, int64_t features, int64_t values, Step step)
      : state_(zero_state(Shape{d.batch, heads, features, values}, d.precision, d.device)), step_(std::move(step)) {}

  Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Indices&) override {
    return step_(q, k, v, state_);
  }
  std::unique_ptr<DecodeState> select(const Indices& rows) const override {
    return std::unique_ptr<DecodeState>(
        new RecurrentState({gather(state_.s, rows), gather(state_.z, rows), state_.precision}, step_));
  }
  int64_t bytes() const override { return (state_.s.size() + state_.z.size()) * static_cast<int64_t>(sizeof(float)); }
  const AttentionState* recurrent_state() const override { return &state_; }

 private:
  RecurrentState(AttentionState state, Step step) : state_(std::move(state)), step_(std::move(step)) {}
  AttentionState state_;
  Step step_;
};

}  // namespace runnel
