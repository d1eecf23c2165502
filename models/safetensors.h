// The safetensors format: 8 bytes of little-endian header length, a JSON header, raw little-endian numbers. Any Python
// user reads these files with `safetensors.torch.load_file`.
#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "models/parameters.h"

namespace runnel {

struct SafeTensors {
  Parameters tensors;
  std::map<std::string, std::string> metadata;
};

// Writes the parts one after another into a temporary file beside `path`, syncs it and renames it: at any moment `path`
// is the old file or the new one, whole. Throws Error that names the path if that fails (no permission, disk full),
// leaving the old file as it was.
void write_atomically(const std::filesystem::path& path, const std::vector<std::span<const char>>& parts);

// Atomic in the same way.
void save_safetensors(const std::filesystem::path& path, const SafeTensors& content);

// Throws Error that names the file and what is wrong with it: missing, truncated, header too long or not JSON, sizes
// that do not match, overlap or lie past the end, a type other than F32.
SafeTensors load_safetensors(const std::filesystem::path& path);

// Copies tensors from `content` into the tensors of `into` by name. Throws Error that names the first tensor that is
// missing or has another shape (a checkpoint of another model), before anything is changed.
void restore(const SafeTensors& content, const std::filesystem::path& path, Parameters into);

}  // namespace runnel
