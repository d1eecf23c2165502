#include "datasets/images.h"

#include <zlib.h>

#include "engine/check.h"

namespace runnel {

ImageSet halved(const ImageSet& images) {
  const int64_t h = images.height / 2, w = images.width / 2, c = images.channels;
  check(images.height == 2 * h && images.width == 2 * w, "halved: images of ", images.height, " x ", images.width,
        " have an odd side");
  ImageSet half{images.name, images.count, h, w, c, {}, images.labels, images.class_names};
  half.pixels.resize(static_cast<size_t>(images.count * half.size()));
  const int64_t row = images.width * c;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < images.count; ++i) {
    uint8_t* to = half.pixels.data() + i * half.size();
    for (int64_t y = 0; y < h; ++y)
      for (int64_t x = 0; x < w; ++x)
        for (int64_t channel = 0; channel < c; ++channel) {
          const uint8_t* from = images.image(i).data() + 2 * y * row + 2 * x * c + channel;
          *to++ = static_cast<uint8_t>((from[0] + from[c] + from[row] + from[row + c] + 2) / 4);
        }
  }
  return half;
}

ImageSet slice(const ImageSet& images, int64_t first, int64_t count) {
  check(first >= 0 && count >= 0 && first <= images.count - count, "slice: ", images.name, " has ", images.count,
        " images, not ", count, " from number ", first);
  const auto pixels = images.pixels.begin() + first * images.size();
  const auto labels = images.labels.begin() + first;
  return {images.name,
          count,
          images.height,
          images.width,
          images.channels,
          {pixels, pixels + count * images.size()},
          {labels, labels + count},
          images.class_names};
}

uint32_t checksum(const ImageSet& images) {
  const uLong pixels = crc32_z(0, images.pixels.data(), images.pixels.size());
  const auto* const labels = reinterpret_cast<const Bytef*>(images.labels.data());
  return static_cast<uint32_t>(crc32_z(pixels, labels, images.labels.size() * sizeof(int32_t)));
}

ByteBatch byte_batch(const ImageSet& images, int64_t first, int64_t batch, Device device, bool classes) {
  check(images.count > 0 && images.size() > 1, "byte_batch: no image of at least two bytes in ", images.name);
  check(first >= 0 && batch >= 0, "byte_batch: ", batch, " images from number ", first);
  const int64_t length = images.size() - (classes ? 0 : 1);
  std::vector<int32_t> tokens, targets;
  tokens.reserve(static_cast<size_t>(batch * length));
  targets.reserve(static_cast<size_t>(batch * length));
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t number = (first + b) % images.count;
    const auto image = images.image(number);
    if (classes) tokens.push_back(256 + images.labels[static_cast<size_t>(number)]);
    tokens.insert(tokens.end(), image.begin(), image.end() - 1);
    targets.insert(targets.end(), image.begin() + (classes ? 0 : 1), image.end());
  }
  const Shape shape{batch, length};
  return {Indices(shape, tokens, device), Indices(shape, targets, device)};
}

}  // namespace runnel
