// Recordings: WAV, FLAC, Ogg and what else libsndfile reads.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

namespace runnel {

struct Audio {
  std::vector<float> samples;  // in units of 16-bit integers; channels are averaged
  int64_t rate = 0;            // samples per second

  double seconds() const { return rate ? static_cast<double>(samples.size()) / static_cast<double>(rate) : 0; }
};

// Throws Error that names the file if it cannot be read, or holds numbers that are not finite.
Audio read_audio(const std::filesystem::path& path);

}  // namespace runnel
