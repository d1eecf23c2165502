// The kernels of ops/speech/. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "ops/kernels/dispatch.h"

namespace runnel {

// A layer of a long short-term memory, in one direction or both, see ops/cpu/speech/lstm.cpp: y [B,T,D H], 0 at
// padding, states [D,B,H], lengths [B] (null: all are T).
struct LstmSizes {
  int64_t directions, batch, frames, width;  // D, B, T, H
  constexpr int64_t kept() const { return 5 * width; }
};
struct LstmInputs {
  const float *gates[2], *w[2];  // of each direction: W x + b [B,T,4H], recurrent weights [4H,H]; blocks i, f, g, o
};
struct LstmGradients {
  float* gates[2];
};
// h0, c0 (null: zero): the states before the first step; h1, c1: after the last. kept [D,B,T,5H] (null: not wanted): i,
// f, g, o and c, undefined at padding.
KERNEL(lstm_forward(float* y, float* h1, float* c1, float* kept, LstmInputs in, const float* h0, const float* c0,
                    const int32_t* lengths, LstmSizes sizes))
// Of in, w is read. dh0 and dc0 may both be null: not wanted; dh1 and dc1 may be null: zero.
KERNEL(lstm_backward(LstmGradients to, float* dh0, float* dc0, const float* dy, const float* dh1, const float* dc1,
                     const float* kept, LstmInputs in, const float* c0, const int32_t* lengths, LstmSizes sizes))
// h [B,T,H]: the state of a direction before each frame, 0 at padding.
KERNEL(lstm_previous(float* h, const float* y, const float* h0, const int32_t* lengths, int64_t direction,
                     LstmSizes sizes))

// Connectionist temporal classification (Graves et al. 2006), see ops/cpu/speech/ctc_loss.cpp: logits z [B,T,V],
// targets [B,U]; lengths and target_lengths [B] (null: all are T, or U).
struct CtcSizes {
  int64_t batch, frames, symbols, labels;  // B, T, V, U
  int32_t blank;
  bool zero_infinity;
  constexpr int64_t states() const { return 2 * labels + 1; }
};
// loss[b] = -log of the probability that the frames of sequence b spell its labels; infinity, or 0 if zero_infinity,
// where that is 0. For the backward pass, alpha [B,T,states] and normaliser [B,T] = log sum_k e^z, which may both be
// null: not wanted.
KERNEL(ctc_loss_forward(float* loss, float* alpha, float* normaliser, const float* logits, const int32_t* lengths,
                        const int32_t* targets, const int32_t* target_lengths, CtcSizes sizes))
KERNEL(ctc_loss_backward(float* dlogits, const float* dloss, const float* alpha, const float* normaliser,
                         const float* logits, const int32_t* lengths, const int32_t* targets,
                         const int32_t* target_lengths, CtcSizes sizes))

}  // namespace runnel
