// The copy task of figure 2, generated as in the authors' code (causal-copy/utils.py): a random sequence of symbols, a
// separator, the sequence again, then padding. The loss is masked to the positions whose target is determined.
#pragma once
#include <tuple>

#include "engine/random.h"
#include "engine/tensor.h"

namespace runnel {

struct CopyBatch {
  Indices tokens;            // x [B,L], 0 .. symbols
  Indices targets;           // y [B,L], y[t] = x[t+1], and 0 after the end
  Tensor mask;               // [B,L], 1 where the loss counts, else 0
  double counted_positions;  // the sum of mask

  auto fields() { return std::tie(tokens, targets, mask); }  // all tensors
};

struct CopyTask {
  int64_t length = 128;  // L
  int64_t symbols = 10;  // written 1 .. symbols; 0 is the separator and the padding

  int64_t vocabulary() const { return symbols + 1; }

  // Each sequence draws its n uniformly from the integers in [L/4, (L-1)/2), 32 .. 62 for L = 128, and is
  //
  //   x    s_1 ... s_n 0 s_1 ... s_n 0 0 ...
  //   mask 1 on [n-1, 2n): the prediction of the separator, of the n symbols after it, but not of the padding
  //
  // Sequences number first, first + 1, ... of the key; training uses seed.fold(step) as key. Throws if L < 5, which
  // leaves no n, or if there is no symbol.
  CopyBatch batch(Key key, int64_t size, Device device = Device::cpu, int64_t first = 0) const;
};

}  // namespace runnel
