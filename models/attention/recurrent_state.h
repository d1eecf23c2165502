// The decode state of kinds that keep a memory of constant size of all earlier positions: S and Z of eq. 16 to 20, or
// the S of a gated kind.
#pragma once
#include <functional>
#include <utility>

#include "models/attention.h"
#include "ops/shapes.h"

namespace runnel {

class RecurrentState : public DecodeState {
 public:
  using Step = std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& x,
                                    std::vector<Tensor>& memory)>;
  struct Options {
    std::optional<Precision> of_s = {};  // if S and Z are the first two tensors of the memory: S's precision
    bool is_layers = true;               // whether the layer can go on from this memory
  };

  // `step` updates the memory in place.
  RecurrentState(std::vector<Tensor> memory, Step step, Options options)
      : memory_(std::move(memory)), step_(std::move(step)), options_(options) {}

  Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& x, const Indices&) override {
    return step_(q, k, v, x, memory_);
  }
  std::unique_ptr<DecodeState> select(const Indices& rows) const override {
    std::vector<Tensor> chosen;
    for (const Tensor& x : memory_) chosen.push_back(gather(x, rows));
    return std::make_unique<RecurrentState>(std::move(chosen), step_, options_);
  }
  int64_t bytes() const override {
    int64_t numbers = 0;
    for (const Tensor& x : memory_) numbers += x.size();
    return numbers * static_cast<int64_t>(sizeof(float));
  }
  std::optional<AttentionState> recurrent_state() const override {
    if (!options_.of_s) return {};
    return AttentionState{memory_[0], memory_[1], *options_.of_s};
  }
  std::vector<Tensor>* memory() override { return options_.is_layers ? &memory_ : nullptr; }

 private:
  std::vector<Tensor> memory_;
  Step step_;
  Options options_;
};

// S and Z before the first position.
inline std::vector<Tensor> zero_sums(const DecodeOptions& d, int64_t heads, int64_t features, int64_t values) {
  const AttentionState zero = zero_state(Shape{d.batch, heads, features, values}, d.precision, d.device);
  return {zero.s, zero.z};
}

}  // namespace runnel
