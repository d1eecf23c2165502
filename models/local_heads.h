// An initialisation, so that a model of images need not learn that the levels of a byte are ordered, and where
// neighbouring pixels are. A start for the weights of an autoregressive transformer with a grid of positions; training
// then changes them like any others.
#pragma once
#include "models/autoregressive.h"

namespace runnel {

// Gives a new model whose positions are a grid a level_embedding, and if its attention has exponential features, local
// heads in all layers but the last, which stays free to look elsewhere. `init` is the key that the model was drawn
// with.
void init_for_images(AutoregressiveTransformer& model, Key init);

// The 256 levels of a byte as sinusoids with periods from 4 to 512 levels, with the variance of the random embedding,
// so that what is learned of a level is known of its neighbours; tokens beyond them are random: [V,width].
Tensor level_embedding(int64_t vocabulary, int64_t width, Key key, Device device);

// Initialises the query and key projections of layer n so that its heads attend to pixels near the byte to predict.
// Grey images: head 0 attends to the pixel above, heads 1 and 2 to that one's neighbours on the right and left, head 3
// two to the left, and so on in turn: on the left, the last that has been read is in the pixel's own row. Colours:
// heads 0, 1, 2 attend to red, green and blue in the pixel's own column, in layer 1 in the column on its left, in
// layer 2 on its right, and so on: the last byte there that has been read, which in its own column is this pixel's
// or the one's above, and on the left always the left neighbour's.
//
// A head finds by position what S and Z keep by feature. Let its features stand for columns c_e, evenly spaced. With
//   K_j[e] = bump(column_j - c_e) + recency (row_j - last row) + own channel (0, or much less)
//   Q_i[e] = bump(column_i + one byte + shift - c_e)                  bump(x) = -sharpness sum_f (1 - cos(w_f x))
// and phi(x) = e^x where x <= 0, phi(Q_i) . phi(K_j) is large where byte j lies in the wanted column, and of all its
// rows the last one that has been read outweighs the others, e^recency to one. Both are linear in the positional
// encoding, by cos(w (x - c)) = cos(wx) cos(wc) + sin(wx) sin(wc), so this is nothing but a start for the projections'
// weights.
void init_local_heads(EncoderLayer& layer, int64_t n, const AutoregressiveConfig& config);

}  // namespace runnel
