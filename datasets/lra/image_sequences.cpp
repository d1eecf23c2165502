#include "datasets/lra/image_sequences.h"

#include "datasets/cifar10.h"
#include "engine/check.h"

namespace runnel {

LabelledSequences grey_sequences(const ImageSet& images) {
  check(!images.class_names.empty(), images.name, ": its images have no classes");
  const int64_t size = images.height * images.width;
  LabelledSequences set;
  set.name = images.name + ", grey";
  set.class_names = images.class_names;
  set.labels = images.labels;
  set.bytes = images.pixels;
  if (images.channels == 3) {
    set.bytes.resize(static_cast<size_t>(images.count * size));
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < images.count * size; ++p) {
      const uint8_t* const rgb = images.pixels.data() + 3 * p;
      const uint32_t weighted = 2989u * rgb[0] + 5870u * rgb[1] + 1140u * rgb[2];  // 10,000 * 255 times that in [0,1]
      set.bytes[static_cast<size_t>(p)] = static_cast<uint8_t>(weighted * 511 / (10'000 * 2 * 255));
    }
  }
  for (int64_t i = 1; i <= images.count; ++i) set.first.push_back(i * size);
  return set;
}

ClassificationData load_grey_cifar10(const std::filesystem::path& directory) {
  const ImageSet images = load_cifar10(directory, Split::train);
  const int64_t held_out = images.count / 10;
  ClassificationData data{grey_sequences(slice(images, 0, images.count - held_out)),
                          grey_sequences(slice(images, images.count - held_out, held_out)),
                          grey_sequences(load_cifar10(directory, Split::test))};
  data.validation.name = "CIFAR-10 (validation), grey";
  return data;
}

}  // namespace runnel
