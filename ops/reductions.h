// Sums, means, maxima, and softmax. ops/ops.h has the letters.
#pragma once
#include "engine/tensor.h"

namespace runnel {

// Over all numbers, or over an axis (-1: the last), which is left out, or kept with size 1.
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, int axis, bool keep_axis = false);
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, int axis, bool keep_axis = false);
Tensor max(const Tensor& x);  // the gradient is the first largest number's
Tensor max(const Tensor& x, int axis, bool keep_axis = false);
Indices argmax(const Tensor& x);              // of the first largest number of each row: [...,n] -> [...]; no gradient
Tensor sum_to(Tensor x, const Shape& shape);  // over the axes that were broadcast from `shape`
Tensor cumulative_sum(const Tensor& x, int axis);  // y_j = sum of x_l over l <= j
Tensor softmax(const Tensor& x);                   // over the last axis
Tensor log_softmax(const Tensor& x);               // log(softmax(x)), also where that is exponentially small
Tensor rms_norm(const Tensor& x, const Tensor& gamma,
                float eps = 1e-6f);                       // gamma x / sqrt(mean x^2 + eps): [...,D] [D]
Tensor l2_normalize(const Tensor& x, float eps = 1e-6f);  // x / sqrt(sum x^2 + eps), over the last axis

// The mean of each sequence's positions before lengths[b], 0 if there are none. Empty lengths: all are L.
Tensor mean_positions(const Tensor& x, const Indices& lengths);  // [B,L,D] [B] -> [B,D]

}  // namespace runnel
