// Functions of one number and of two. ops/ops.h has the letters.
#pragma once
#include "engine/tensor.h"

namespace runnel {

// Broadcasting: shapes are aligned at the last axis; an axis of size 1, or a missing leading one, is repeated, and its
// gradient is the sum over it.
Tensor add(const Tensor& a, const Tensor& b);       // [...] [...] -> [...]
Tensor subtract(const Tensor& a, const Tensor& b);  // a - b
Tensor multiply(const Tensor& a, const Tensor& b);
Tensor divide(const Tensor& a, const Tensor& b);                     // a / b
Tensor maximum(const Tensor& a, const Tensor& b);                    // where both are equal, the gradient is a's
Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b);  // mask is not 0 ? a : b; no gradient for the mask
Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator+(const Tensor& a, float b);
Tensor operator+(float a, const Tensor& b);
Tensor operator-(const Tensor& a, float b);
Tensor operator-(float a, const Tensor& b);
Tensor operator*(const Tensor& a, float b);
Tensor operator*(float a, const Tensor& b);
Tensor operator/(const Tensor& a, float b);
Tensor operator/(float a, const Tensor& b);
Tensor operator-(const Tensor& x);
Tensor scale(const Tensor& x, float s);  // s x

// [...] -> [...]
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor square(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);       // 1 / (1 + e^-x)
Tensor silu(const Tensor& x);          // x sigmoid(x)
Tensor softplus(const Tensor& x);      // log(1 + e^x)
Tensor relu(const Tensor& x);          // max(x, 0)
Tensor gelu(const Tensor& x);          // x Phi(x), exact
Tensor elu_plus_one(const Tensor& x);  // x + 1 if x > 0, else e^x: eq. 7

}  // namespace runnel
