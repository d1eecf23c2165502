// The same numbers with another shape. It has no kernel: result and gradient share the storage of the tensors that they
// are made of.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/shapes.h"

namespace runnel {

Tensor reshape(const Tensor& x, Shape shape) {
  check(shape.size() == x.size(), "reshape: x ", x.shape(), " does not have as many elements as ", shape);
  if (!is_recording()) return x.viewed_as(shape);
  return record("reshape", {x}, detach(x).viewed_as(shape),
                [from = x.shape()](const Tensor& dy) -> std::vector<Tensor> { return {dy.viewed_as(from)}; });
}

}  // namespace runnel
