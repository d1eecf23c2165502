// Images as sequences of bytes: a set in memory, and the batches that an autoregressive model reads.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/tensor.h"

namespace runnel {

struct ImageSet {
  std::string name;  // printed beside every result
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

// CRC-32 of pixels and labels.
uint32_t checksum(const ImageSet& images);

// There is no begin-of-sequence token: the first byte is only an input. A class-conditional model reads the token
// 256 + label before it, and predicts the first byte too.
struct ByteBatch {
  Indices tokens;   // [B,n-1], bytes 0 .. n-2 of each image; with classes [B,n], the class before them
  Indices targets;  // [B,n-1], bytes 1 .. n-1; with classes [B,n], bytes 0 .. n-1

  auto fields() { return std::tie(tokens, targets); }  // all tensors
};

// Images first, first + 1, ... in the order of the set, wrapping around at its end. Training reads first = step * batch
// without shuffling, as the authors do, so the step alone is the position in the data.
ByteBatch byte_batch(const ImageSet& images, int64_t first, int64_t batch, Device device = Device::cpu,
                     bool classes = false);

}  // namespace runnel
