// Rectified Adam: the part that is the same for all parameters. The update itself is in ops/radam.cpp.
//
// v is a mean over few gradients at first, and dividing by its root then has a large variance. With
// n = n_max - 2 t beta2^t / (1 - beta2^t), n_max = 2 / (1 - beta2) - 1, the number of gradients that v effectively
// averages at step t, the step is scaled by
//   rectification = sqrt((n - 4) / (n_max - 4)  (n - 2) / (n_max - 2)  n_max / n)    from n >= 5 on,
// and before that (5 steps with beta2 = 0.999) it is momentum without v.
#include "models/optimizer.h"

#include <cmath>

#include "engine/check.h"
#include "ops/kernels.h"

namespace runnel {

RAdam::RAdam(std::vector<NamedTensor> parameters, RAdamOptions options)
    : parameters_(std::move(parameters)), options_(options) {
  for (const auto& [name, tensor] : parameters_) {
    m_.push_back(Tensor::full(tensor.shape(), 0, tensor.device()));
    v_.push_back(Tensor::full(tensor.shape(), 0, tensor.device()));
  }
}

std::vector<RAdamTensor> RAdam::tensors(const Gradients& gradients) {
  std::vector<RAdamTensor> tensors;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& parameter = parameters_[i].tensor;
    tensors.push_back({parameter.data(), m_[i].data(), v_[i].data(), gradients.of(parameter).data(), parameter.size()});
  }
  return tensors;
}

Tensor RAdam::squares(const Gradients& gradients) {
  const std::vector<RAdamTensor> all = tensors(gradients);
  const Device device = all.empty() ? Device::cpu : parameters_[0].tensor.device();
  Tensor squares(Shape{std::ssize(all) + 1}, device);
  DISPATCH(device, sums_of_squares(squares.data(), all.data(), std::ssize(all)));
  return squares;
}

void RAdam::step(const Gradients& gradients, const Tensor& squares) {
  if (parameters_.empty()) return;
  const std::vector<RAdamTensor> all = tensors(gradients);
  const RAdamOptions& o = options_;
  const double t = static_cast<double>(++steps_);
  const double beta2_t = std::pow(o.beta2, t);
  const double n_max = 2 / (1 - o.beta2) - 1;
  const double n = n_max - 2 * t * beta2_t / (1 - beta2_t);
  RAdamStep step{.beta1 = o.beta1,
                 .beta2 = o.beta2,
                 .eps = o.eps,
                 .decay = o.weight_decay * o.lr,
                 .size = o.lr / (1 - std::pow(o.beta1, t)),
                 .adaptive = n >= 5,
                 .clip = o.clip,
                 .global_clip = o.global_clip};
  if (step.adaptive) step.size *= std::sqrt((1 - beta2_t) * (n - 4) / (n_max - 4) * (n - 2) / (n_max - 2) * n_max / n);

  DISPATCH(parameters_[0].tensor.device(), radam_step(all.data(), std::ssize(all), squares.data(), step));
}

std::vector<NamedTensor> RAdam::state() const {
  std::vector<NamedTensor> state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    state.push_back({"optimizer.m." + parameters_[i].name, m_[i]});
    state.push_back({"optimizer.v." + parameters_[i].name, v_[i]});
  }
  return state;
}

}  // namespace runnel
