// A test of gradient rules.
#pragma once
#include <functional>
#include <vector>

#include "engine/tensor.h"

namespace runnel {

struct GradientCheck {
  double h = 0.02;          // distance of the differences; inputs must be 2h away from kinks
  double tolerance = 2e-3;  // largest difference, relative to the largest derivative compared, or 1 if that is larger
  int64_t elements = 48;    // of each input that are moved, about; on the emulator, which is slow, a quarter
};

// Compares the gradients of sum_i c_i f(inputs)_i, with random numbers c_i, with four-point differences
//   f'(x) = (8 (f(x + h) - f(x - h)) - (f(x + 2h) - f(x - 2h))) / 12h,
// whose error in float32 is some 1e-5 where f is smooth. Throws Error that names the input and the element where they
// differ, or if a gradient is missing or not finite. The inputs want gradients afterwards.
void check_gradients(const std::function<Tensor(const std::vector<Tensor>&)>& f, std::vector<Tensor> inputs,
                     const GradientCheck& options = {});

}  // namespace runnel
