// A causal encoder one position at a time, for a batch of sequences: the function of Encoder without gradient and
// dropout. Its linear layers are copied, packed for products with few rows.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "models/encoder.h"

namespace runnel {

class IncrementalEncoder {
 public:
  // Throws Error if the attention has no incremental form.
  IncrementalEncoder(const Encoder& encoder, const DecodeOptions& decoding);

  // x of position number position[0] of each sequence, which comes after all that it was called with: [B,1,D] [1] ->
  // [B,1,D].
  Tensor step(const Tensor& x, const Indices& position);
  // The same of L positions at once, and whether the attention can do that.
  Tensor read(const Tensor& x);  // [B,L,D] -> [B,L,D]
  bool can_read() const { return states_[0]->memory() != nullptr; }
  // A copy in which sequence i is sequence rows[i] of this one; goes on independently from here.
  IncrementalEncoder select(const Indices& rows) const;
  int64_t bytes() const;  // of states, for the whole batch
  const DecodeState& state(int64_t layer) const { return *states_[static_cast<size_t>(layer)]; }
  int64_t layers() const { return std::ssize(states_); }

 private:
  struct Packed;
  IncrementalEncoder() = default;
  using Attend =
      std::function<Tensor(size_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& x)>;
  Tensor run(Tensor x, const Attend& attend) const;

  std::shared_ptr<const Packed> packed_;
  std::vector<std::unique_ptr<DecodeState>> states_;
};

}  // namespace runnel
