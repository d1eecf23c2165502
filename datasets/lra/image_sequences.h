// Images as labelled sequences of grey bytes, row after row: Long Range Arena's task Image is CIFAR-10 in this form.
#pragma once
#include <filesystem>

#include "datasets/images.h"
#include "datasets/lra/labelled.h"

namespace runnel {

// Colours become grey as by TensorFlow's rgb_to_grayscale of bytes: .2989 R + .5870 G + .1140 B in [0,1], times 255.5,
// cut to an integer. Throws if the images have no classes.
LabelledSequences grey_sequences(const ImageSet& images);

// CIFAR-10 from its files, as load_cifar10 finds them. The last tenth of the training images is for validation: 45,000,
// 5,000 and 10,000 images.
ClassificationData load_grey_cifar10(const std::filesystem::path& directory);

}  // namespace runnel
