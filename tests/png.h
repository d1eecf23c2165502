// Shared by the tests of pictures: PNG files, read by another library than the one that wrote them.
#pragma once
#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <memory>

#include "apps/plots/pictures.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#define STBI_ONLY_PNG
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#include <stb/stb_image.h>
#pragma GCC diagnostic pop

namespace runnel::test {

using Colour = std::array<uint8_t, 3>;

static Picture read_png(const std::filesystem::path& path) {
  int width = 0, height = 0, channels = 0;
  const std::unique_ptr<uint8_t, void (*)(void*)> pixels(stbi_load(path.c_str(), &width, &height, &channels, 3),
                                                         stbi_image_free);
  REQUIRE(pixels != nullptr);
  REQUIRE(channels == 3);
  return {height, width, {pixels.get(), pixels.get() + width * height * 3}};
}

inline Colour at(const Picture& p, int64_t y, int64_t x) {
  const auto* const pixel = p.rgb.data() + (y * p.width + x) * 3;
  return {pixel[0], pixel[1], pixel[2]};
}

}  // namespace runnel::test
