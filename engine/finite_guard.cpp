#include "engine/finite_guard.h"

#include <algorithm>
#include <cmath>

#include "engine/check.h"

namespace runnel {
namespace {

// NaN is named without its sign.
template <class... What>
void check_finite(const Tensor& x, const What&... what) {
  if (!x) return;
  const std::vector<float> values = x.to_vector();
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      fail(what..., " ", x.shape(), " has ", std::isnan(values[i]) ? NAN : values[i], " at element ", i);
}

}  // namespace

void FiniteGuard::recorded(const char* op, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) check_finite(inputs[i], "input ", i, " of ", op);
  if (outputs.size() == 1) return check_finite(outputs[0], "the result of ", op);
  for (size_t i = 0; i < outputs.size(); ++i) check_finite(outputs[i], "result ", i, " of ", op);
}

void FiniteGuard::differentiated(const char* op, size_t input, const Tensor& dx) {
  check_finite(dx, "the gradient of input ", input, " of ", op);
}

std::vector<float> finite_output(const Tensor& y) {
  std::vector<float> values = y.to_vector();
  check(std::ranges::all_of(values, [](float x) { return std::isfinite(x); }),
        "the model puts out numbers that are not finite: its weights are, but too large to compute with");
  return values;
}

}  // namespace runnel
