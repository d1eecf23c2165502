// Connectionist temporal classification. ops/ops.h has the letters.
#pragma once
#include "engine/tensor.h"

namespace runnel {

struct CtcOptions {
  int32_t blank = 0;           // the symbol that stands for none
  bool zero_infinity = false;  // labels that do not fit into their frames: loss 0, not infinity; the gradient is 0
};
// Connectionist temporal classification (Graves et al. 2006): -log of the probability, in nats, that symbols drawn from
// the softmax of each frame spell the targets, once repeated symbols are merged and blanks dropped. T frames, of which
// lengths[b] count, and U labels, of which target_lengths[b] count; empty: all.
Tensor ctc_loss(const Tensor& logits, const Indices& lengths, const Indices& targets, const Indices& target_lengths,
                const CtcOptions& options = {});  // [B,T,V] [B] [B,U] [B] -> [B]

}  // namespace runnel
