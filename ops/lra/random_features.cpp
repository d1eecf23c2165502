// Positive random features (Choromanski et al. 2021), and a random projection for them. The product with the projection
// is recorded as an op of its own.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/lra.h"
#include "ops/linear.h"
#include "ops/lra/attention.h"

namespace runnel {

Tensor positive_random_features(const Tensor& x, const Tensor& projection) {
  const Shape shape = x.shape();
  check(shape.rank() >= 1 && shape[-1] > 0, "positive_random_features: x ", shape, " is not [...,E]");
  const int64_t e = shape[-1];
  check(
      projection.shape().rank() == 2 && projection.shape() == Shape{projection.shape()[0], e} && projection.size() > 0,
      "positive_random_features: projection ", projection.shape(), " is not [F,", e, "] as x ", shape, " asks for");
  const int64_t features = projection.shape()[0], rows = x.size() / e;
  const Tensor p = linear(x, projection, {});
  Tensor y(p.shape(), x.device());
  DISPATCH(x.device(), positive_random_features_forward(y.data(), p.data(), x.data(), rows, features, e));
  return record("positive_random_features", {p, x}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dp(y.shape(), y.device()), dx(x.shape(), x.device());
    DISPATCH(x.device(),
             positive_random_features_backward(dp.data(), dx.data(), dy.data(), y.data(), x.data(), rows, features, e));
    return {dp, dx};
  });
}

Tensor random_projection(int64_t features, int64_t e, Key key, Device device) {
  check(features > 0 && e > 0, "random_projection: [", features, ",", e, "] has no numbers");
  Tensor w(Shape{features, e}, device);
  DISPATCH(device, random_projection(w.data(), key, features, e));
  return w;
}

}  // namespace runnel
