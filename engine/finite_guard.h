// Finds the first number that is not finite.
#pragma once
#include <vector>

#include "engine/tape.h"

namespace runnel {

// While one is alive, every op that this thread records checks its inputs and its outputs, and the backward pass every
// gradient. The first NaN or infinity throws an Error that names the op, the tensor's shape and the element. For
// debugging: each check waits for the device.
class FiniteGuard : TapeObserver {
 public:
  FiniteGuard() : outer_(set_observer(this)) {}
  ~FiniteGuard() override { set_observer(outer_); }
  FiniteGuard(const FiniteGuard&) = delete;
  FiniteGuard& operator=(const FiniteGuard&) = delete;

 private:
  void recorded(const char* op, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) override;
  void differentiated(const char* op, size_t input, const Tensor& dx) override;

  TapeObserver* outer_;
};

// The numbers of a model's output. Throws Error if one is not finite.
std::vector<float> finite_output(const Tensor& y);

}  // namespace runnel
