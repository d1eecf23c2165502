// From sequences to one vector each: how classifiers end.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/reductions.h"
#include "ops/reductions.h"

namespace runnel {

Tensor mean_positions(const Tensor& x, const Indices& lengths) {
  const char* const op = "mean_positions";
  const Device device = device_of(op, x, lengths);
  check(x.shape().rank() == 3 && x.shape()[1] > 0, op, ": x ", x.shape(), " is not [B,L,D] with positions");
  const int64_t batch = x.shape()[0], length = x.shape()[1], d = x.shape()[2];
  check(!lengths || lengths.shape() == Shape{batch}, op, ": lengths ", lengths.shape(),
        " are not one number for each of ", batch, " sequences");
  if (lengths && device == Device::cpu)
    for (int64_t b = 0; b < batch; ++b)
      check(lengths.data()[b] >= 0 && lengths.data()[b] <= length, op, ": length ", lengths.data()[b], " of sequence ",
            b, " is not in [0, ", length, "]");
  Tensor y(Shape{batch, d}, device);
  DISPATCH(device, mean_positions_forward(y.data(), x.data(), lengths.data(), batch, length, d));
  return record(op, {x}, y, [=, shape = x.shape()](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(shape, dy.device());
    DISPATCH(dy.device(), mean_positions_backward(dx.data(), dy.data(), lengths.data(), batch, length, d));
    return {dx};
  });
}

}  // namespace runnel
