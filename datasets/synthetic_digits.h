// Digits drawn by a program, in MNIST's format: for machines without data and network.
#pragma once
#include "datasets/images.h"
#include "engine/random.h"

namespace runnel {

// 28 x 28 grey images of 0 .. 9 with random slant, width and stroke. Image i depends on key.fold(i) only. The set's
// name, which is printed beside every result, is "synthetic digits (not MNIST)".
ImageSet synthetic_digits(int64_t count, Key key);

}  // namespace runnel
