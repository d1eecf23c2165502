// The optimizer of a run, whose moments processes() may share: ZeRO stage 1 (Rajbhandari et al. 2020).
#pragma once
#include <vector>

#include "models/muon.h"

namespace runnel {

// An Optimizer. If it is sharded, each process keeps the moments of some parameters, updates those, and gives their new
// values to the others.
class ShardedOptimizer {
 public:
  ShardedOptimizer(const Parameters& parameters, AdamOptions options, bool muon = false, bool sharded = false);

  const Parameters& parameters() const { return parameters_; }  // in the order in which they were given
  // As Optimizer's, of all parameters.
  Tensor squares(const Gradients& gradients) const { return squared_norms(all_, gradients); }
  void begin_update() { own_.begin_update(); }
  void update(const Gradients& gradients, const Tensor& squares);
  void set_lr(double lr) { own_.set_lr(lr); }
  void set_steps(int64_t steps) { own_.set_steps(steps); }
  // For checkpoints, the moments of all parameters. Collective, if they are sharded.
  Parameters state() const;
  Parameters empty_state() const { return Optimizer::empty_state(all_, muon_); }
  void set_state(const Parameters& state);                                 // this process's, from those of all
  int64_t state_bytes() const { return 4 * element_count(own_.state()); }  // of this process

 private:
  Parameters parameters_, all_;  // all_: in the order of an Optimizer
  bool muon_;
  std::vector<int> owners_;  // of each; empty: not sharded
  Optimizer own_;            // of this process's parameters
  Indices rows_;             // of those in squares, and the last
};

}  // namespace runnel
