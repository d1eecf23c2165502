#include "ops/shapes.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

std::vector<double> windows_of(const Tensor& x, const Window& w) {
  const std::vector<double> values = doubles(x);
  const int64_t batch = x.shape()[0], height = x.shape()[1], width = x.shape()[2], channels = x.shape()[3];
  std::vector<double> y;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t top = -w.padding; top + w.height <= height + w.padding; top += w.stride)
      for (int64_t left = -w.padding; left + w.width <= width + w.padding; left += w.stride)
        for (int64_t i = top; i < top + w.height; ++i)
          for (int64_t j = left; j < left + w.width; ++j)
            for (int64_t c = 0; c < channels; ++c) {
              const bool inside = i >= 0 && i < height && j >= 0 && j < width;
              y.push_back(inside ? values[static_cast<size_t>(((b * height + i) * width + j) * channels + c)] : 0);
            }
  return y;
}

}  // namespace

TEST_CASE("unfold: windows of images and their gradients, with strides and padding") {
  const std::vector<Window> windows{{1, 1}, {3, 3}, {2, 3, 2}, {3, 2, 1, 1}, {3, 3, 2, 2}, {2, 2, 5}, {6, 5, 1, 3}};
  for (Device device : devices())
    for (const Window& w : windows)
      for (const int64_t channels : {1, 3}) {
        CAPTURE(w.height);
        CAPTURE(w.width);
        CAPTURE(w.stride);
        CAPTURE(w.padding);
        const Tensor x = random_tensor(Shape{2, 6, 5, channels}, 1, -1, 1, device);
        const Tensor y = unfold(x, w);
        CHECK(y.shape()[-1] == w.height * w.width * channels);
        check_close(y, windows_of(x, w), exact);
        check_gradients([&](const std::vector<Tensor>& in) { return unfold(in[0], w); }, {x});
      }
}

TEST_CASE("unfold: impossible windows are refused") {
  const Tensor x(Shape{2, 6, 5, 1});
  check_fails([&] { unfold(x, {7, 1}); }, "unfold: windows of 7 x 1 do not fit into x [2,6,5,1] with padding 0");
  check_fails([&] { unfold(x, {1, 1, 0}); }, "unfold: a window of 1 x 1 with stride 0 and padding 0 is impossible");
  check_fails([&] { unfold(Tensor(Shape{6, 5}), {1, 1}); }, "unfold: x [6,5] is not [B,H,W,C]");
}
