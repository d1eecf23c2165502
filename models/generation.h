// Sequences of bytes (images), drawn one byte after another.
#pragma once
#include <functional>
#include <vector>

#include "models/decoder.h"

namespace runnel {

// Completes sequences of n bytes: `sequences` holds one per key, [B,n], of which the bytes known .. n-1 are drawn.
// Sequence b goes on from sequence from[b] of `decoder`, which has read all known bytes but the last. Its byte t is
// drawn from keys[b] and t, so a sequence does not depend on which others are drawn with it. How many are drawn at once
// follows the free memory. progress(done, total) is called after each byte with bytes of all sequences, serialised,
// from any worker thread; the last call has done == total. An exception that it throws ends the drawing.
//
// A class-conditional model reads the class of its image first, as token 256 + class: then `classes` holds one per key,
// and known may be 0.
void sample_bytes(std::vector<uint8_t>& sequences, int64_t known, const Decoder& decoder,
                  const std::vector<int64_t>& from, const std::vector<Key>& keys, float temperature,
                  const std::function<void(int64_t done, int64_t total)>& progress = {},
                  const std::vector<int32_t>& classes = {});

// work(), which steps through `decoder`: with helpers (ops/helpers.h) if the loops of a step are short.
void with_helpers(const Decoder& decoder, const std::function<void()>& work);

}  // namespace runnel
