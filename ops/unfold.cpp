// Windows of images as rows, so that a convolution is a product and pooling a reduction.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/shapes.h"
#include "ops/shapes.h"

namespace runnel {

Tensor unfold(const Tensor& x, const Window& w) {
  const Shape& s = x.shape();
  check(s.rank() == 4, "unfold: x ", s, " is not [B,H,W,C]");
  check(w.height > 0 && w.width > 0 && w.stride > 0 && w.padding >= 0, "unfold: a window of ", w.height, " x ", w.width,
        " with stride ", w.stride, " and padding ", w.padding, " is impossible");
  const int64_t height = s[1] + 2 * w.padding - w.height, width = s[2] + 2 * w.padding - w.width;
  check(height >= 0 && width >= 0, "unfold: windows of ", w.height, " x ", w.width, " do not fit into x ", s,
        " with padding ", w.padding);
  const WindowSizes sizes{s[0],     s[1],    s[2],     s[3],     height / w.stride + 1, width / w.stride + 1,
                          w.height, w.width, w.stride, w.padding};
  Tensor y(Shape{s[0], sizes.rows, sizes.columns, w.height * w.width * s[3]}, x.device());
  DISPATCH(x.device(), unfold_forward(y.data(), x.data(), sizes));
  return record("unfold", {x}, y, [sizes, shape = s](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(shape, dy.device());
    DISPATCH(dy.device(), unfold_backward(dx.data(), dy.data(), sizes));
    return {dx};
  });
}

}  // namespace runnel
