// Windows of images as rows.
#include "cuda/launch.h"
#include "ops/kernels/shapes.h"

namespace runnel::cuda {
namespace {

// Launch: a thread per element. Owns: y[i]. Shared: none.
__global__ void unfold_forward_kernel(float* y, const float* x, WindowSizes s, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) {
    int64_t rest = i;
    const auto digit = [&rest](int64_t size) {
      const int64_t index = rest % size;
      rest /= size;
      return index;
    };
    const int64_t c = digit(s.channels), w = digit(s.window_width), h = digit(s.window_height);
    const int64_t left = digit(s.columns) * s.stride - s.padding + w, top = digit(s.rows) * s.stride - s.padding + h;
    const bool inside = left >= 0 && left < s.width && top >= 0 && top < s.height;
    y[i] = inside ? x[((rest * s.height + top) * s.width + left) * s.channels + c] : 0;
  }
}

// Launch: a thread per element. Owns: dx[i], the sum over the windows that see it. Shared: none.
__global__ void unfold_backward_kernel(float* dx, const float* dy, WindowSizes s, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t c = i % s.channels, pixel = i / s.channels;
    const int64_t left = pixel % s.width + s.padding, top = pixel / s.width % s.height + s.padding;
    const int64_t b = pixel / (s.width * s.height);
    float sum = 0;
    for (int64_t h = 0; h < s.window_height; ++h) {
      const int64_t row = (top - h) / s.stride;
      if (top < h || (top - h) % s.stride != 0 || row >= s.rows) continue;
      for (int64_t w = 0; w < s.window_width; ++w) {
        const int64_t column = (left - w) / s.stride;
        if (left < w || (left - w) % s.stride != 0 || column >= s.columns) continue;
        const int64_t window = (b * s.rows + row) * s.columns + column;
        sum += dy[((window * s.window_height + h) * s.window_width + w) * s.channels + c];
      }
    }
    dx[i] = sum;
  }
}

}  // namespace

void unfold_forward(float* y, const float* x, WindowSizes s) {
  const int64_t n = s.batch * s.rows * s.columns * s.window_height * s.window_width * s.channels;
  launch("unfold_forward", unfold_forward_kernel, over(n), y, x, s, n);
}

void unfold_backward(float* dx, const float* dy, WindowSizes s) {
  const int64_t n = s.batch * s.height * s.width * s.channels;
  launch("unfold_backward", unfold_backward_kernel, over(n), dx, dy, s, n);
}

}  // namespace runnel::cuda
