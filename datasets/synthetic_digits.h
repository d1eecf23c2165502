// Digits drawn by a program, in MNIST's shape: for a machine with no data and no network.
#pragma once
#include "datasets/images.h"
#include "engine/random.h"

namespace runnel {

// 28 x 28 grey images of 0 .. 9, each in a handwriting of its own. Image i depends on key.fold(i) only. The set is
// called "synthetic digits (not MNIST)", and whoever prints a result prints that name.
ImageSet synthetic_digits(int64_t count, Key key);

}  // namespace runnel
