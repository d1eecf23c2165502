// Text of any kind, as bytes: a file, or a folder of files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "engine/tensor.h"

namespace runnel {

struct Text {
  std::string name;
  std::vector<uint8_t> train, validation;  // the first nine tenths of the bytes, and the rest
};

// Of a file, gzip'd or not, or of all files below a folder in the order of their paths, but those whose names begin
// with a dot and symbolic links. Throws Error that names what is missing, cannot be read or is damaged, or too short: a
// window of `length` bytes and the one after it must fit into both parts.
Text load_text(const std::filesystem::path& path, int64_t length);
// All bytes of it. Throws Error as load_text if there are fewer than two.
std::vector<uint8_t> read_text(const std::filesystem::path& path);

uint32_t checksum(const Text& text);

// Windows of a text that a model reads, and the bytes that come after each of theirs.
struct TextBatch {
  Indices tokens, targets;  // [B,L] [B,L]
  Tensor kept;              // [B]: 1 where the window goes on from the one before it in this place of the batch, else 0
  auto fields() { return std::tie(tokens, targets, kept); }
};
// Windows that begin at these bytes; the text is a circle.
TextBatch text_windows(const std::vector<uint8_t>& text, const std::vector<int64_t>& begins, int64_t length,
                       bool kept = false);

}  // namespace runnel
