// Images (or any bytes) drawn one byte after another from a model whose outputs are mixtures of logistics.
#pragma once
#include <functional>
#include <vector>

#include "models/transformer.h"

namespace runnel {

// Completes sequences of n bytes: sequences holds one per key, [B,n], of which the bytes known .. n-1 are drawn.
// Sequence b goes on from sequence from[b] of `state`, which has read bytes 0 .. known-2. Its byte t is drawn from
// keys[b].fold(t), so it does not matter what else is drawn with it. progress(bytes, of) is told how many of all bytes
// are drawn, the last time that all are, by one thread at a time, whichever draws.
//
// State is RecurrentTransformer or RereadingTransformer.
template <class State>
void complete(std::vector<uint8_t>& sequences, int64_t known, const State& state, const std::vector<int64_t>& from,
              const std::vector<Key>& keys, float temperature,
              const std::function<void(int64_t bytes, int64_t of)>& progress = {});

}  // namespace runnel
