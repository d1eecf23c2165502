// Learned sums over positions, to which Linformer (Wang et al. 2020) reduces keys and values.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/approximate_attention.h"
#include "ops/attention/arguments.h"
#include "ops/kernels/approximate_attention.h"

namespace runnel {

Tensor project_positions(const Tensor& x, const Tensor& p, const Indices& lengths) {
  const char* const op = "project_positions";
  const Shape &xs = x.shape(), &ps = p.shape();
  check(xs.rank() >= 2, op, ": x ", xs, " is not [B,S,...]");
  check(ps.rank() == 2 && ps[1] > 0, op, ": p ", ps, " is not [at least S,R]");
  check(xs[1] <= ps[0], op, ": x ", xs, " has more positions than p ", ps, " has rows");
  device_of(op, x, p, lengths);
  check_lengths(op, lengths, xs[0], xs[1]);
  std::vector<int64_t> sizes{xs[0], ps[1]};
  int64_t width = 1;
  for (int axis = 2; axis < xs.rank(); ++axis) {
    sizes.push_back(xs[axis]);
    width *= xs[axis];
  }
  const PositionSizes s{xs[0], xs[1], width, ps[0], ps[1]};
  Tensor y(Shape(sizes), x.device());
  DISPATCH(x.device(), project_positions_forward(y.data(), x.data(), p.data(), lengths.data(), s));
  return record(op, {x, p}, y, [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(x.shape(), x.device()), dp(p.shape(), p.device());
    DISPATCH(x.device(),
             project_positions_backward(dx.data(), dp.data(), dy.data(), x.data(), p.data(), lengths.data(), s));
    return {dx, dp};
  });
}

}  // namespace runnel
