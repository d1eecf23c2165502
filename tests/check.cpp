#include "tests/check.h"

#include "ops/linear.h"
#include "ops/shapes.h"

namespace runnel::test {

Tensor weighted_sum(const Tensor& y, const Tensor& c) {
  return matmul(reshape(y, Shape{1, y.size()}), c.viewed_as(Shape{c.size(), 1}));
}

void check_gradients(const std::function<Tensor(const std::vector<Tensor>&)>& f, std::vector<Tensor> inputs, double h,
                     double tolerance) {
  for (Tensor& x : inputs) x.set_wants_grad();
  Tape tape;
  const Tensor y = f(inputs);
  const Tensor c = random_tensor(Shape{y.size(), 1}, 77, -1, 1, y.device());
  const Gradients gradients = tape.backward(weighted_sum(y, c));
  const std::vector<double> cotangent = doubles(c);

  const auto value = [&](const std::vector<Tensor>& at) {
    const std::vector<double> values = doubles(f(at));
    double total = 0;
    for (size_t i = 0; i < values.size(); ++i) total += cotangent[i] * values[i];
    return total;
  };
  for (size_t n = 0; n < inputs.size(); ++n) {
    CAPTURE(n);
    const std::vector<float> x = inputs[n].to_vector();
    const std::vector<double> analytic = doubles(gradients.of(inputs[n]));
    std::vector<double> tried, numeric;
    const bool is_slow = inputs[n].device() == Device::cuda && cuda_is_emulated();
    const size_t stride = std::max<size_t>(1, x.size() / (is_slow ? 12 : 48));
    for (size_t i = 0; i < x.size(); i += stride) {
      const auto moved = [&](double by) {
        std::vector<float> values = x;
        values[i] = static_cast<float>(values[i] + by);
        std::vector<Tensor> at = inputs;
        at[n] = Tensor(inputs[n].shape(), values, inputs[n].device());
        return value(at);
      };
      numeric.push_back((8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h));
      tried.push_back(analytic[i]);
    }
    CHECK_LE(distance(tried, numeric), tolerance);
  }
}

}  // namespace runnel::test
