// Activation checkpointing: less memory for more computation.
#pragma once
#include <functional>

#include "engine/tensor.h"

namespace runnel {

// f(), whose intermediate tensors are not kept for the backward pass: that calls f again and differentiates the second
// run. What f captures is kept. f must return the same numbers every time. Gradients are the same to the bit, unless f
// shares a tensor with ops outside: then they are summed in another order.
Tensor recompute(const std::function<Tensor()>& f);

}  // namespace runnel
