// Muon (Jordan et al. 2024), an optimizer for matrices only that learns more from as many updates (its arithmetic is in
// ops/cpu/muon.cpp), and the optimizer of a run: Adam for all parameters, or Muon for some and Adam for the rest.
#pragma once
#include <vector>

#include "models/optimizer.h"

namespace runnel {

class Muon {
 public:
  Muon(Parameters matrices, double lr, double weight_decay);

  // As Adam's; squares[i] is that of matrix i. Matrices the loss does not depend on are an error.
  void begin_update();
  void update(const Gradients& gradients, const Tensor& squares);
  void set_lr(double lr) { lr_ = lr; }
  Parameters state() const;  // as Adam's, but there is no v

 private:
  Parameters matrices_;
  std::vector<Tensor> m_;
  Tensor rates_;  // of muon_step
  double lr_, weight_decay_;
};

// Adam, or Muon for the value, output and feed-forward matrices and Adam for the rest.
class Optimizer {
 public:
  Optimizer(const Parameters& parameters, AdamOptions options, bool muon = false);

  void step(const Gradients& gradients);
  // The same in parts: the squared norms of the gradients, the last of which is that of all together
  // and tells whether they are finite, and Adam's two halves.
  Tensor squares(const Gradients& gradients) const { return squared_norms(all_, gradients); }
  void begin_update();
  void update(const Gradients& gradients, const Tensor& squares);
  void set_lr(double lr);
  Parameters state() const;  // for checkpoints: the moments
  void set_steps(int64_t steps) { adam_.set_steps(steps); }

  // Muon's parameters, then Adam's: the order in which squares() has them.
  static Parameters ordered(Parameters parameters, bool muon);
  // Tensors of the shapes of state() of an optimizer of these parameters: zeros, in host memory.
  static Parameters empty_state(const Parameters& parameters, bool muon);

 private:
  Parameters all_;
  int64_t muons_;  // how many of them are Muon's
  Adam adam_;
  Muon muon_;
};

}  // namespace runnel
