// One picture file of the user's own, PNG or JPEG, as a small square image of bytes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "datasets/images.h"

namespace runnel {

// The bytes of a file that begins as PNG or JPEG files do. Throws Error with the reason and without the path: no
// regular file, cannot be read, another format, larger than 512 MiB.
std::vector<uint8_t> read_picture_file(const std::filesystem::path& path);

// Decodes a PNG or JPEG file and scales the square at its centre to [side,side,channels], channels being 1 (grey) or
// 3 (r g b r g b ...).
//  * Samples are taken as sRGB, of 8 or 16 bits. All arithmetic is done on linear light, and the result is sRGB again:
//    otherwise fine bright detail, such as stars or text, would darken as it gets smaller.
//  * Smaller: each pixel is the mean over the exact area that it covers. Larger: bilinear. The same size: the same
//    bytes.
//  * Transparent pixels are drawn on white. Grey is the luminance 0.2126 r + 0.7152 g + 0.0722 b.
//  * The EXIF orientation is applied (JPEG's APP1, PNG's eXIf), unless it is damaged. Colour profiles and PNG's gamma
//    are ignored.
// Throws Error with the reason and without the path: another format, truncated, a wrong checksum, damaged, a header
// that claims more than 512 MiB of pixels, or scans that would take minutes, which are found before they are decoded.
std::vector<uint8_t> scaled_picture(std::span<const uint8_t> file, int64_t side, int64_t channels);

// A picture file as a set of one image, with label 0. Throws Error that names the file and what is wrong with it.
ImageSet load_image_file(const std::filesystem::path& path, int64_t side, int64_t channels);

}  // namespace runnel
