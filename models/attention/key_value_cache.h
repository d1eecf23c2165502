// The decode state of kinds whose queries see all earlier positions, or the last ones: softmax, longformer.
#pragma once
#include <utility>

#include "models/attention.h"
#include "ops/shapes.h"
#include "ops/softmax_attention.h"

namespace runnel {

class KeyValueState : public DecodeState {
 public:
  explicit KeyValueState(KeyValueCache cache) : cache_(std::move(cache)) {}
  // Of at most `positions`, of which a cache that `wraps` keeps the last ones.
  KeyValueState(const AttentionShape& shape, const DecodeOptions& d, int64_t positions, bool wraps)
      : cache_{Tensor(Shape{d.batch, shape.heads, shape.head_dim, positions}, d.device),
               Tensor(Shape{d.batch, shape.heads, positions, shape.head_dim}, d.device), wraps} {}

  Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Indices& position) override {
    return softmax_attention_step(q, k, v, cache_, position);
  }
  std::unique_ptr<DecodeState> select(const Indices& rows) const override {
    return std::make_unique<KeyValueState>(KeyValueCache{gather(cache_.k, rows), gather(cache_.v, rows), cache_.wraps});
  }
  int64_t bytes() const override { return (cache_.k.size() + cache_.v.size()) * static_cast<int64_t>(sizeof(float)); }

 private:
  KeyValueCache cache_;
};

}  // namespace runnel
