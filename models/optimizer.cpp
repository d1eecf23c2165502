// Adam: the part that is the same for all parameters. The update itself is in ops/cpu/radam.cpp.
//
// Rectified Adam: v is a mean over few gradients at first, and dividing by its root then has a large variance. With
// n = n_max - 2 t beta2^t / (1 - beta2^t), n_max = 2 / (1 - beta2) - 1, the number of gradients that v effectively
// averages at step t, the step is scaled by
//   rectification = sqrt((n - 4) / (n_max - 4)  (n - 2) / (n_max - 2)  n_max / n)    from n >= 5 on,
// and before that (5 steps with beta2 = 0.999) it is momentum without v. Adam is the same without rectification, but
// for eps: its authors add it to sqrt(v / (1 - beta2^t)), those of RAdam (in their code) to sqrt(v).
#include "models/optimizer.h"

#include <cmath>

#include "engine/check.h"
#include "ops/elementwise.h"
#include "ops/optimizers.h"
#include "ops/shapes.h"

namespace runnel {

Adam::Adam(Parameters parameters, AdamOptions options) : parameters_(std::move(parameters)), options_(options) {
  for (const auto& [name, tensor] : parameters_) {
    m_.push_back(Tensor::full(tensor.shape(), 0, tensor.device()));
    v_.push_back(Tensor::full(tensor.shape(), 0, tensor.device()));
  }
  if (!parameters_.empty()) rates_ = Tensor(Shape{4}, parameters_[0].tensor.device());
}

Tensor squared_norms(const Parameters& parameters, const Gradients& gradients) {
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : parameters) {
    check(tensor.wants_grad(), "optimizer: the parameter ", name,
          " wants no gradient; call set_wants_grad() before the ops");
    all.push_back(gradients.of(tensor));
  }
  return sums_of_squares(all);
}

void Adam::step(const Gradients& gradients) {
  const Tensor squares = squared_norms(parameters_, gradients);
  begin_update();
  update(gradients, squares, 0);
}

void Adam::begin_update() {
  const AdamOptions& o = options_;
  const double t = static_cast<double>(++steps_);
  const double beta2_t = std::pow(o.beta2, t);
  const double n_max = 2 / (1 - o.beta2) - 1;
  const double n = n_max - 2 * t * beta2_t / (1 - beta2_t);
  const bool adaptive = n >= 5 || !o.rectify;
  const double correction = std::sqrt(1 - beta2_t);  // of sqrt(v)
  double size = o.lr / (1 - std::pow(o.beta1, t));
  if (adaptive) size *= correction;
  if (adaptive && o.rectify) size *= std::sqrt((n - 4) / (n_max - 4) * (n - 2) / (n_max - 2) * n_max / n);
  const float decay = static_cast<float>(o.weight_decay * o.lr);
  const float eps = static_cast<float>(o.rectify ? o.eps : o.eps * correction);
  if (rates_) assign(rates_, Tensor(Shape{4}, {static_cast<float>(size), decay, adaptive ? 1.0f : 0.0f, eps}));
}

void Adam::update(const Gradients& gradients, const Tensor& squares, int64_t first) {
  if (parameters_.empty()) return;
  std::vector<RAdamUpdate> all;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i].tensor;
    all.push_back({parameter, m_[i], v_[i], gradients.of(parameter)});
  }
  const AdamOptions& o = options_;
  radam_step(std::move(all), squares, first, rates_, {o.beta1, o.beta2, o.clip, o.global_clip});
}

Parameters Adam::state() const {
  Parameters state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    state.push_back({"optimizer.m." + parameters_[i].name, m_[i]});
    state.push_back({"optimizer.v." + parameters_[i].name, v_[i]});
  }
  return state;
}

Sgd::Sgd(Parameters parameters, double lr, double momentum)
    : parameters_(std::move(parameters)), lr_(lr), momentum_(momentum) {
  for (const auto& [name, tensor] : parameters_) m_.push_back(Tensor::full(tensor.shape(), 0, tensor.device()));
}

void Sgd::step(const Gradients& gradients) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& p = parameters_[i].tensor;
    m_[i] = add(scale(m_[i], static_cast<float>(momentum_)), gradients.of(p));
    assign(p, subtract(detach(p), scale(m_[i], static_cast<float>(lr_))));
  }
}

}  // namespace runnel
