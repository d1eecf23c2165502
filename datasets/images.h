// Images as sequences of bytes: a set of them in memory, and the batches that an autoregressive model reads.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace runnel {

struct ImageSet {
  std::string name;  // what to call it wherever a result is printed
  int64_t count = 0, height = 0, width = 0, channels = 0;
  std::vector<uint8_t> pixels;                // [count,height,width,channels]
  std::vector<int32_t> labels;                // [count], numbers of classes
  std::vector<std::string> class_names = {};  // empty: the images have no classes, and every label is 0

  int64_t size() const { return height * width * channels; }  // bytes of one image
  std::span<const uint8_t> image(int64_t i) const { return {pixels.data() + i * size(), static_cast<size_t>(size())}; }
};

// Half the height and width: every pixel is the mean of 2 x 2, rounded. Throws if a side is odd.
ImageSet halved(const ImageSet& images);

// Images first .. first + count - 1. Throws if the set has fewer.
ImageSet slice(const ImageSet& images, int64_t first, int64_t count);

// There is no start token, and the first byte is only an input; unless the model is told the classes, which then come
// first, as 256 + label, and let it predict the first byte too.
struct ByteBatch {
  Indices tokens;   // [B,n-1], bytes 0 .. n-2 of each image; with classes [B,n], the class before them
  Indices targets;  // [B,n-1], bytes 1 .. n-1; with classes [B,n], bytes 0 .. n-1
};

// Images first, first + 1, ... in the order of the set, the first after the last. Training reads first = step * batch,
// as the authors do: no shuffling, and the step alone says where in the data a run is.
ByteBatch byte_batch(const ImageSet& images, int64_t first, int64_t batch, Device device = Device::cpu,
                     bool classes = false);

}  // namespace runnel
