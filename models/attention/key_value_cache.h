// The decode state of kinds whose queries see all earlier positions, the last ones, or those of their own block:
// softmax, longformer, local.
#pragma once
#include <memory>

#include "models/attention.h"
#include "ops/shapes.h"
#include "ops/softmax_attention.h"

namespace runnel {

class KeyValueState : public DecodeState {
 public:
  enum class Keeps { all, last, block };
  // Keys and values of so many positions: of all, or of the last ones, or of the block that is being read.
  KeyValueState(const AttentionShape& shape, const DecodeOptions& d, int64_t positions, Keeps keeps)
      : cache_{Tensor(Shape{d.batch, shape.heads, shape.head_dim, positions}, d.device),
               Tensor(Shape{d.batch, shape.heads, positions, shape.head_dim}, d.device), keeps == Keeps::last} {
    if (keeps == Keeps::block) place_ = Indices(Shape{1}, {0}, d.device);
  }

  Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Indices& position) override {
    if (!place_) return softmax_attention_step(q, k, v, cache_, position);
    const Tensor y = softmax_attention_step(q, k, v, cache_, place_);
    advance(place_, cache_.v.shape()[2]);
    return y;
  }
  std::unique_ptr<DecodeState> select(const Indices& rows) const override {
    auto chosen = std::make_unique<KeyValueState>(*this);
    chosen->cache_.k = gather(cache_.k, rows);
    chosen->cache_.v = gather(cache_.v, rows);
    if (place_) chosen->place_ = Indices(Shape{1}, place_.to_vector(), place_.device());
    return chosen;
  }
  int64_t bytes() const override { return (cache_.k.size() + cache_.v.size()) * static_cast<int64_t>(sizeof(float)); }

 private:
  KeyValueCache cache_;
  Indices place_;  // [1]: of the next position in its block; empty: it is the position
};

}  // namespace runnel
