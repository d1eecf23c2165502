// Optimizers: SGD, and Adam (Kingma and Ba 2015), which with a weight decay is AdamW (Loshchilov and Hutter 2019) and
// rectified is RAdam (Liu et al. 2020), as the paper's authors train; its arithmetic is in ops/cpu/radam.cpp.
// models/muon.h has Muon.
#pragma once
#include <vector>

#include "engine/tape.h"
#include "models/parameters.h"

namespace runnel {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool rectify = false;     // RAdam
  double weight_decay = 0;  // decoupled: p -= weight_decay lr p
  double muon_decay = 0;    // the same, of the matrices that Muon updates
  double clip = 0;          // each tensor's gradient is scaled down to this norm; 0: never
  double global_clip = 0;   // all gradients together are scaled down to this norm; 0: never
};

// The authors' options, with the decay of the presets that use Muon.
inline constexpr AdamOptions authors_options{.rectify = true, .weight_decay = 0.01, .muon_decay = 0.3, .clip = 1};

// The squared norm of each parameter's gradient, then of all together: [parameters + 1]. Parameters that the loss does
// not depend on are an error.
Tensor squared_norms(const Parameters& parameters, const Gradients& gradients);

class Adam {
 public:
  explicit Adam(Parameters parameters, AdamOptions options = {});

  void step(const Gradients& gradients);
  // The two halves of an update. begin_update() counts it, and copies the scalars that depend on its number and on the
  // learning rate to the device. update() reads it there, so that it can be captured and replayed (engine/replay.h).
  // squares[first] is the squared norm of the first parameter's gradient, the last that of all; if that is not finite,
  // nothing changes.
  void begin_update();
  void update(const Gradients& gradients, const Tensor& squares, int64_t first);
  void set_lr(double lr) { options_.lr = lr; }
  int64_t steps() const { return steps_; }  // updates made

  // For checkpoints: the moments, named optimizer.m.<parameter> and optimizer.v.<parameter>, sharing storage.
  Parameters state() const;
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  Parameters parameters_;
  std::vector<Tensor> m_, v_;
  Tensor rates_;  // of radam_step
  AdamOptions options_;
  int64_t steps_ = 0;
};

// Stochastic gradient descent with momentum: m = momentum m + gradient, p -= lr m.
class Sgd {
 public:
  explicit Sgd(Parameters parameters, double lr, double momentum = 0);
  void step(const Gradients& gradients);
  void set_lr(double lr) { lr_ = lr; }

 private:
  Parameters parameters_;
  std::vector<Tensor> m_;
  double lr_, momentum_;
};

}  // namespace runnel
