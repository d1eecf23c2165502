// Windows of images as rows. A row of a window is contiguous in the image, too: pixels of all channels one after the
// other.
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"
#include "ops/kernels/shapes.h"

namespace runnel {
namespace {

// The part of a window's row that lies inside the image: numbers [begin, end) of the row, which are those of the
// image's row from `from` on.
struct Overlap {
  int64_t begin, end, from;
  Overlap(const WindowSizes& s, int64_t column) {
    const int64_t left = column * s.stride - s.padding;  // of the window, in pixels
    begin = std::clamp<int64_t>(-left, 0, s.window_width) * s.channels;
    end = std::clamp<int64_t>(s.width - left, 0, s.window_width) * s.channels;
    from = left * s.channels + begin;
  }
};

}  // namespace

void cpu::unfold_forward(float* y, const float* x, WindowSizes s) {
  const int64_t window_row = s.window_width * s.channels;
  parallel_rows(s.batch * s.rows * s.columns, s.window_height * window_row, [=](int64_t i) {
    const int64_t b = i / (s.rows * s.columns), row = i / s.columns % s.rows;
    const Overlap inside(s, i % s.columns);
    for (int64_t h = 0; h < s.window_height; ++h) {
      float* const to = y + (i * s.window_height + h) * window_row;
      const int64_t top = row * s.stride - s.padding + h;
      if (top < 0 || top >= s.height || inside.end <= inside.begin) {
        clear(to, window_row);
        continue;
      }
      clear(to, inside.begin);
      copy_numbers(to + inside.begin, x + (b * s.height + top) * s.width * s.channels + inside.from,
                   inside.end - inside.begin);
      clear(to + inside.end, window_row - inside.end);
    }
  });
}

// A thread owns rows of dx, and adds to them the gradients of all windows that reach into them.
void cpu::unfold_backward(float* dx, const float* dy, WindowSizes s) {
  const int64_t image_row = s.width * s.channels, window_row = s.window_width * s.channels;
  parallel_rows(s.batch * s.height, s.window_height * s.columns * window_row, [=](int64_t i) {
    float* const to = dx + i * image_row;
    clear(to, image_row);
    const int64_t b = i / s.height;
    for (int64_t h = 0; h < s.window_height; ++h) {
      const int64_t top = i % s.height + s.padding - h;  // of a window whose row h this is, times the stride
      if (top < 0 || top % s.stride != 0 || top / s.stride >= s.rows) continue;
      for (int64_t column = 0; column < s.columns; ++column) {
        const int64_t window = (b * s.rows + top / s.stride) * s.columns + column;
        const Overlap inside(s, column);
        accumulate(to + inside.from, dy + (window * s.window_height + h) * window_row + inside.begin,
                   inside.end - inside.begin);
      }
    }
  });
}

}  // namespace runnel
