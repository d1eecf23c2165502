// Recordings: WAV, FLAC, Ogg and the other formats of libsndfile.
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

// Throws Error that names the file if it is no regular file, cannot be read, or is not whole; if it holds numbers that
// are no sound; if it has fewer samples than a frame, or more than `longest` frames, without reading on.
Audio read_audio(const std::filesystem::path& path, int64_t longest);

}  // namespace runnel
