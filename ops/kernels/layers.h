// The kernels of ops/layers.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "engine/random.h"
#include "ops/kernels/dispatch.h"

namespace runnel {

// y[i] = x[i] / (1 - p) where the key's 16-bit number i is at least round(p 2^16), else 0. Its own gradient. Number i
// is (key.bits(i / 2) >> 16 (i % 2)) & 0xffff: eight to a Philox block, the low half of a word first. i counts elements
// of the whole tensor, in this kernel and in all others with dropout.
KERNEL(dropout(float* y, const float* x, int64_t n, Dropout dropout))

// s = x + dropout(a) (a may be null: s = x);  y = (s - mean) rstd gamma + beta, per row of D with the biased variance
// and eps inside the root. mean and rstd are [rows].
KERNEL(layer_norm_forward(float* y, float* mean, float* rstd, const float* x, const float* a, const float* gamma,
                          const float* beta, int64_t rows, int64_t d, float eps, Dropout dropout))
// da may be null; with p = 0 it equals dx. dgamma and dbeta are summed over rows.
KERNEL(layer_norm_backward(float* dx, float* da, float* dgamma, float* dbeta, const float* dy, const float* x,
                           const float* a, const float* gamma, const float* mean, const float* rstd, int64_t rows,
                           int64_t d, Dropout dropout))

// y[b,l] = dropout(concat(table[tokens[b,l]], code[first + l])) with table [V,d], code [at least first + L, p]: y
// [B,L,d+p]. first[0] is the position of the first token (null: 0); it lies in device memory so that a captured
// graph can be replayed unchanged.
KERNEL(embedding_forward(float* y, const int32_t* tokens, const float* table, const float* code, const int32_t* first,
                         int64_t batch, int64_t length, int64_t d, int64_t p, Dropout dropout))
// dtable [V,d], summed over the tokens in their order.
KERNEL(embedding_backward(float* dtable, const float* dy, const int32_t* tokens, int64_t batch, int64_t length,
                          int64_t vocabulary, int64_t d, int64_t p, Dropout dropout))

}  // namespace runnel
