// Elementwise ops. ops/ops.h has the letters.
#pragma once
#include "engine/tensor.h"

namespace runnel {

Tensor add(const Tensor& a, const Tensor& b);          // [...] [...] -> [...]
Tensor scale(const Tensor& x, float s);                // [...] -> [...]
Tensor scale(const Tensor& x, const Tensor& factors);  // [...] [...] -> [...]; no gradient for the factors
Tensor add_bias(const Tensor& x, const Tensor& b);     // [...,D] [D] -> [...,D]
Tensor relu(const Tensor& x);                          // [...] -> [...]
Tensor gelu(const Tensor& x);                          // [...] -> [...], exact (erf)
Tensor elu_plus_one(const Tensor& x);                  // [...] -> [...], eq. 7

}  // namespace runnel
