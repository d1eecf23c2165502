// What a transformer's numbers are before it is trained: drawn with the distributions of the authors' framework, and
// for images, if the length of a row is known, what need not be learned: that levels are ordered, and where to look.
#pragma once
#include "models/transformer.h"

namespace runnel {

// Uniform in +-1/sqrt(in), weight and bias alike.
Linear random_linear(int64_t out, int64_t in, Key key, Device device);

// Weight 1, bias 0.
LayerNorm plain_layer_norm(int64_t width, Device device);

// Standard normal: [V,width].
Tensor random_embedding(int64_t vocabulary, int64_t width, Key key, Device device);

// The 256 levels of a byte as sinusoids with periods from 4 to 512 levels, with the variance of the random embedding,
// so that what is learned of a level is known of its neighbours; tokens beyond them are random: [V,width].
Tensor level_embedding(int64_t vocabulary, int64_t width, Key key, Device device);

// The paper's sinusoids of the position l: [length,width]. With rows (row > 0), half of the width is such a code of the
// column (l mod row) / channels, the other half of the row l / row. If there are channels, the last two numbers are
// the channel's, as a point on a circle.
Tensor position_code(int64_t length, int64_t width, int64_t row, int64_t channels, Device device);

// Lets the heads of layer n begin by looking near the byte to predict. Needs config.row > 0 and linear attention.
// Grey images: head 0 looks at the pixel above, heads 1 and 2 at that one's neighbours on the right and left, head 3
// two to the left, and so on in turn: on the left, the last that has been read is in the pixel's own row. Colours:
// heads 0, 1, 2 look for red, green and blue in the pixel's own column, in layer 1 in the column on its left, in
// layer 2 on its right, and so on: the last byte there that has been read, which in its own column is this pixel's
// or the one's above, and on the left always the left neighbour's.
//
// A head finds by place what S and Z keep by feature. Let its features stand for columns c_e, evenly spaced. With
//   K_j[e] = bump(column_j - c_e) + recency (row_j - last row) + own channel (0, or much less)
//   Q_i[e] = bump(column_i + one byte + shift - c_e)                  bump(x) = -sharpness sum_f (1 - cos(w_f x))
// and phi(x) = e^x where x <= 0, phi(Q_i) . phi(K_j) is large where byte j lies in the column asked for, and of all
// its rows the last one that has been read outweighs the others, e^recency to one. Both are linear in the position
// code, by cos(w (x - c)) = cos(wx) cos(wc) + sin(wx) sin(wc), so this is nothing but a start for the projections'
// weights.
void look_above(EncoderLayer& layer, int64_t n, const TransformerConfig& config);

}  // namespace runnel
