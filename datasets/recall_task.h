// Multi-query associative recall (Arora et al. 2023, arXiv 2312.04927): a sequence begins with pairs of a key and its
// value; behind them the keys come again, each once, and the model is to tell the value of each.
#pragma once
#include <tuple>

#include "engine/random.h"
#include "engine/tensor.h"

namespace runnel {

struct RecallBatch {
  Indices tokens;  // [B,L]
  Indices places;  // [B N], of the keys behind the pairs: in the rows of [B L]
  Indices values;  // [B N], of these keys

  auto fields() { return std::tie(tokens, places, values); }
};

struct RecallTask {
  int64_t vocabulary = 8192;  // V: keys are 1 .. V/2 - 1, values V/2 .. V - 1

  // `size` sequences of `length` tokens with `pairs` pairs, number first, first + 1, ... of the key. Keys are distinct,
  // and so are values. Of the (L - 2N) / 2 pairs of places behind the N pairs, the keys stand at the first places of N,
  // drawn without replacement with weights g^-0.99, g = 1, 2, ...; at all other places are random tokens, or 0 where
  // such a one is a key of the sequence. Throws if 4 N > L, or if there are fewer than N keys.
  RecallBatch batch(Key key, int64_t size, int64_t length, int64_t pairs, int64_t first = 0) const;
};

}  // namespace runnel
