// The safetensors format: 8 bytes of little-endian header length, a JSON header, raw little-endian numbers. Any Python
// user reads these files with `safetensors.torch.load_file`.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/parameters.h"

namespace runnel {

struct SafeTensors {
  Parameters tensors;
  std::map<std::string, std::string> metadata;
};

// How matrices, tensors of two axes, are written. In int8, row r of a matrix NAME is round(x / s) in one byte each, at
// most 127 in magnitude, with s = max |x| / 127 as number r of a tensor NAME.scale: the integers that linear layers
// with --precision int8 round their weights to. Throws Error if one holds a number that is not finite.
enum class MatrixStorage { f32, int8 };

// Writes the file atomically, with a checksum (CRC-32) of its contents as metadata "crc32".
void save_safetensors(const std::filesystem::path& path, const SafeTensors& content,
                      MatrixStorage matrices = MatrixStorage::f32);

// Throws Error that names the file and what is wrong with it: missing, truncated, header too long or not JSON, sizes
// that do not match, overlap or lie past the end, contents that do not have their checksum (files of other programs
// need not have one). F16, BF16, and I8 with scales, as above, become float32; tensors of other types are left out.
// Refusing a file takes at most 64 MB and twice its size; four times where it holds I8.
SafeTensors load_safetensors(const std::filesystem::path& path);

// Only the metadata, without reading the tensors. Throws Error that names the file if its header is damaged.
std::map<std::string, std::string> load_metadata(const std::filesystem::path& path);

// Reads a file that save_safetensors wrote, and throws Error if it does not have its checksum.
void verify_safetensors(const std::filesystem::path& path);

// Copies tensors from `content` into the tensors of `into` by name. Throws Error that names the first tensor that is
// missing or has another shape (a checkpoint of another model), before anything is changed.
void restore(const SafeTensors& content, const std::filesystem::path& path, Parameters into);

}  // namespace runnel
