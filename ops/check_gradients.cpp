#include "ops/check_gradients.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/check.h"
#include "engine/random.h"
#include "engine/tape.h"

namespace runnel {
namespace {

double weighted_sum(const Tensor& y, const std::vector<float>& weights) {
  const std::vector<float> values = y.to_vector();
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += double{weights[i]} * double{values[i]};
  return sum;
}

}  // namespace

void check_gradients(const std::function<Tensor(const std::vector<Tensor>&)>& f, std::vector<Tensor> inputs,
                     const GradientCheck& options) {
  for (Tensor& x : inputs) x.set_wants_grad();
  std::vector<float> c;
  Gradients gradients;
  {
    Tape tape;
    const Tensor y = f(inputs);
    check(y.wants_grad(), "check_gradients: the result does not depend on the inputs");
    for (uint64_t i = 0; i < static_cast<uint64_t>(y.size()); ++i) c.push_back(2 * Key{77}.uniform(i) - 1);
    tape.backward(
        y, [&](uint64_t leaf, Tensor gradient) { gradients.by_id[leaf] = std::move(gradient); },
        Tensor(y.shape(), c, y.device()));
  }

  for (size_t n = 0; n < inputs.size(); ++n) {
    const Tensor& x = inputs[n];
    const std::vector<float> at = x.to_vector(), analytic = gradients.of(x).to_vector();
    const auto count = static_cast<int64_t>(at.size());
    const bool is_slow = x.device() == Device::cuda && cuda_is_emulated();
    const int64_t stride = std::max<int64_t>(1, count / (is_slow ? options.elements / 4 : options.elements));
    std::vector<double> numeric;
    double largest = 1;
    for (int64_t i = 0; i < count; i += stride) {
      const auto moved = [&](double by) {
        std::vector<float> values = at;
        values[static_cast<size_t>(i)] += static_cast<float>(by);
        std::vector<Tensor> there = inputs;
        there[n] = Tensor(x.shape(), values, x.device());
        return weighted_sum(f(there), c);
      };
      const double h = options.h;
      numeric.push_back((8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h));
      largest = std::max(largest, std::abs(numeric.back()));
    }
    for (int64_t i = 0; i < count; i += stride) {
      const double expected = numeric[static_cast<size_t>(i / stride)],
                   found = double{analytic[static_cast<size_t>(i)]};
      check(std::abs(found - expected) <= options.tolerance * largest, "check_gradients: input ", n, ' ', x.shape(),
            ", element ", i, ": the gradient is ", found, ", differences give ", expected);
    }
  }
}

}  // namespace runnel
