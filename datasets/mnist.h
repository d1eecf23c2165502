// MNIST, or a successor of 28 x 28 pixels (EMNIST, Fashion-MNIST), from its four IDX files, gzip'd or not. An IDX file
// is a big-endian magic number (2051: images, 2049: labels), a count, for images their height and width, and then one
// byte per pixel or label.
#pragma once
#include "datasets/files.h"
#include "datasets/images.h"

namespace runnel {

// Reads one split from directory/mnist or the directory itself, as train-images-idx3-ubyte or train-images.idx3-ubyte,
// with or without .gz. The classes are the numbers from 0 to the largest label, at least 9. Throws Error that names the
// file and says what to do: missing, unreadable, damaged, another magic number, truncated, bytes left over, not 28 x
// 28, or not as many labels as images.
ImageSet load_mnist(const std::filesystem::path& directory, Split split);

}  // namespace runnel
