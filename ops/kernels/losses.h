// The kernels of ops/losses.h. ops/kernels/dispatch.h has what holds for all, ops/ops.h the letters.
#pragma once
#include <cstdint>

#include "engine/random.h"
#include "ops/kernels/dispatch.h"

namespace runnel {

// nll[r] = mask[r] (logsumexp(logits[r,:]) - logits[r,target[r]]), in nats; mask may be null (all ones).
KERNEL(cross_entropy_forward(float* nll, const float* logits, const int32_t* targets, const float* mask, int64_t rows,
                             int64_t vocabulary))
// dlogits[r,:] = scale[0] mask[r] (softmax(logits[r,:]) - onehot(target[r])).
KERNEL(cross_entropy_backward(float* dlogits, const float* scale, const float* logits, const int32_t* targets,
                              const float* mask, int64_t rows, int64_t vocabulary))
// drawn[r] from softmax(logits[r,:] / temperature) with one uniform of keys[r].fold(position[0]) (of keys[r] itself if
// position is null).
KERNEL(categorical_sample(int32_t* drawn, const float* logits, const Key* keys, const int32_t* position,
                          float temperature, int64_t rows, int64_t vocabulary))
// y[0] = a[0] / b[0]: a mean over a mask whose sum only the device knows.
KERNEL(divide(float* y, const float* a, const float* b))

// Mixture of K discretized logistics (PixelCNN++, Salimans et al. 2017) over the bytes 0..255, which stand for
// -1, -1 + 2/255, ..., 1. params [rows,3K] hold K mixture logits, K means, K log-scales (taken as at least -7); see
// ops/cpu/logistic_mixture.cpp. nll[r] = -log P(byte[r]), in nats.
KERNEL(logistic_mixture_forward(float* nll, const float* params, const int32_t* bytes, int64_t rows, int64_t k))
KERNEL(logistic_mixture_backward(float* dparams, const float* dnll, const float* params, const int32_t* bytes,
                                 int64_t rows, int64_t k))
// bytes[r] drawn from exactly that distribution with two uniforms of keys[r].fold(position[0]) (of keys[r] itself if
// position is null), sharpened by the temperature (1: none).
KERNEL(logistic_mixture_sample(int32_t* bytes, const float* params, const Key* keys, const int32_t* position,
                               float temperature, int64_t rows, int64_t k))

}  // namespace runnel
