// Losses, in nats, and samplers of their distributions. ops/ops.h has the letters.
#pragma once
#include "engine/random.h"
#include "engine/tensor.h"

namespace runnel {

// -log softmax(logits)[target], in nats, averaged over the positions weighted by mask [...] (empty: all ones).
Tensor cross_entropy(const Tensor& logits, const Indices& targets, const Tensor& mask = {});  // [...,V] [...] -> []
// The same at each position.
Tensor categorical_nll(const Tensor& logits, const Indices& targets);  // [...,V] [...] -> [...]
// One target per row, drawn from softmax(logits / temperature) with keys[r], or with keys[r].fold(position).
Indices categorical_sample(const Tensor& logits, const Keys& keys, float temperature = 1,
                           const Indices& position = {});  // [...,V] [rows] . [1] -> [...]

// -log P(byte) in nats under a mixture of K discretized logistics, per position; see ops/cpu/logistic_mixture.cpp.
Tensor logistic_mixture_nll(const Tensor& params, const Indices& bytes);  // [...,3K] [...] -> [...]
// One byte per row, drawn from that very distribution with keys[r], or with keys[r].fold(position). A temperature below
// 1 sharpens it.
Indices logistic_mixture_sample(const Tensor& params, const Keys& keys, float temperature = 1,
                                const Indices& position = {});  // [...,3K] [rows] . [1] -> [...]

// Of bytes: 256 outputs are the logits of a byte's values, 3K the parameters of a mixture of logistics.
Tensor byte_nll(const Tensor& outputs, const Indices& bytes);  // [...,256 or 3K] [...] -> [...]
Indices byte_sample(const Tensor& outputs, const Keys& keys, float temperature = 1,
                    const Indices& position = {});  // [...,256 or 3K] [rows] . [1] -> [...]

}  // namespace runnel
