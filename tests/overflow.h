// A checkpoint whose weights are finite, but too large to compute with.
#pragma once
#include <algorithm>
#include <filesystem>

#include "models/safetensors.h"

namespace runnel::test {

inline void make_overflow(const std::filesystem::path& checkpoint) {
  SafeTensors content = load_safetensors(checkpoint);
  for (auto& [name, tensor] : content.tensors) std::fill_n(tensor.data(), tensor.size(), 3e38f);
  save_safetensors(checkpoint, content);
}

}  // namespace runnel::test
