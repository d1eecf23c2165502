// Fixed positional encodings: the paper's sinusoids of the position, and for images a grid of column, row and channel.
#pragma once
#include "engine/tensor.h"

namespace runnel {

// Bytes of an image as a grid. row is the number of bytes in a row of the image, or 0 if positions are just numbers.
struct Grid {
  int64_t row = 0;
  int64_t channels = 1;  // 1, or 3 whose bytes follow each other, r g b r g b
};

// Radians per position of the numbers 2i and 2i + 1, its sine and cosine, of an encoding `width` wide.
double encoding_frequency(int64_t i, int64_t width);
constexpr double channel_angle = 2.0943951023931953;  // 2 pi / 3: three channels on a circle

// How many numbers of a grid's encoding belong to each coordinate, in this order.
struct GridParts {
  int64_t column, row, channel;
  GridParts(int64_t width, const Grid& grid);
};

// Sinusoids of the position l, base 10,000: [length,width]. With a grid, half of the width is such a code of the column
// (l mod row) / channels, the rest that of the row l / row, and if there are channels, the last two numbers are the
// channel as a point on a circle.
Tensor positional_encoding(int64_t length, int64_t width, const Grid& grid, Device device);

}  // namespace runnel
