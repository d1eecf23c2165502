// Images (or any bytes): what a model's outputs say of a byte, and how they are drawn, one byte after another.
#pragma once
#include <functional>
#include <vector>

#include "models/transformer.h"

namespace runnel {

// 256 outputs are the logits of a byte's values; 3K are the parameters of a mixture of K logistics, as in the paper.
// -log P(byte) in nats, per position.
Tensor byte_nll(const Tensor& outputs, const Indices& bytes);  // [...,256 or 3K] [...] -> [...]

// Completes sequences of n bytes: sequences holds one per key, [B,n], of which the bytes known .. n-1 are drawn.
// Sequence b goes on from sequence from[b] of `state`, which has read all known bytes but the last. Its byte t is drawn
// from keys[b] and t, so it does not matter what else is drawn with it. How many are drawn at once follows the memory
// at hand. progress(bytes, of) is told how many of all bytes are drawn, the last time that all are, by one thread at a
// time, whichever draws.
//
// A model that is told the class of its image reads it first, as token 256 + class: then classes holds one per key, and
// known may be 0.
//
// State is RecurrentTransformer or RereadingTransformer.
template <class State>
void complete(std::vector<uint8_t>& sequences, int64_t known, const State& state, const std::vector<int64_t>& from,
              const std::vector<Key>& keys, float temperature,
              const std::function<void(int64_t bytes, int64_t of)>& progress = {},
              const std::vector<uint8_t>& classes = {});

}  // namespace runnel
