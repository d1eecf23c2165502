// One update of all parameters by rectified Adam, and the squared norms of their gradients.
#include <vector>

#include "engine/check.h"
#include "ops/kernels/optimizers.h"
#include "ops/optimizers.h"

namespace runnel {

Tensor sums_of_squares(const std::vector<Tensor>& gradients) {
  std::vector<RAdamTensor> tensors;  // of which only the gradients are read
  const Device device = gradients.empty() ? Device::cpu : gradients[0].device();
  for (const Tensor& gradient : gradients) {
    device_of("sums_of_squares", gradients[0], gradient);
    tensors.push_back({nullptr, nullptr, nullptr, gradient.data(), gradient.size()});
  }
  Tensor squares(Shape{std::ssize(gradients) + 1}, device);
  DISPATCH(device, sums_of_squares(squares.data(), tensors.data(), std::ssize(tensors)));
  return squares;
}

void radam_step(std::vector<RAdamUpdate> updates, const Tensor& squares, int64_t first, const Tensor& rates,
                const RAdamStep& step) {
  if (updates.empty()) return;
  const int64_t count = std::ssize(updates);
  check(first >= 0 && first + count + 1 == squares.size(), "radam_step: squares ", squares.shape(), " from ", first,
        " on do not match ", count, " updates");
  check(rates.size() == 4, "radam_step: rates ", rates.shape(), " are not size, decay, adaptive and eps");
  std::vector<RAdamTensor> tensors;
  for (auto& [parameter, m, v, gradient] : updates) {
    device_of("radam_step", squares, rates, parameter, m, v, gradient);
    check(m.shape() == parameter.shape() && v.shape() == parameter.shape() && gradient.shape() == parameter.shape(),
          "radam_step: m ", m.shape(), ", v ", v.shape(), " and gradient ", gradient.shape(),
          " do not match the parameter ", parameter.shape());
    tensors.push_back({parameter.data(), m.data(), v.data(), gradient.data(), parameter.size()});
  }
  DISPATCH(squares.device(), radam_step(tensors.data(), count, squares.data() + first, rates.data(), step));
}

}  // namespace runnel
