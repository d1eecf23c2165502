// CIFAR-10 from its binary version: five files of training images and one of test images. An image is 3073 bytes: its
// label, then 32 x 32 bytes of red, of green and of blue, row after row.
#pragma once
#include "datasets/files.h"
#include "datasets/images.h"

namespace runnel {

// Reads one split, 32 x 32 x 3 with r g b of a pixel side by side, from directory/cifar-10-batches-bin,
// directory/cifar10 or the directory itself: data_batch_1.bin .. data_batch_5.bin or test_batch.bin, each with or
// without .gz. A file holds from 1 to 10,000 images; the real ones hold 10,000. Throws Error that names the file and
// says what to do: missing, unreadable, damaged, no whole number of images, longer, or a label above 9.
ImageSet load_cifar10(const std::filesystem::path& directory, Split split);

}  // namespace runnel
