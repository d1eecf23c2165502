// Recordings that tests write.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/folder.h"

namespace runnel::test {

// A WAV file of 16-bit samples.
inline void write_wav(const std::filesystem::path& path, const std::vector<int16_t>& samples, uint32_t rate = 8000,
                      uint16_t channels = 1) {
  std::string bytes = "RIFF....WAVEfmt ";
  const auto number = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
  number(uint32_t{16});
  number(uint16_t{1});
  number(channels);
  number(rate);
  number(rate * channels * 2);
  number(static_cast<uint16_t>(channels * 2));
  number(uint16_t{16});
  bytes += "data";
  number(static_cast<uint32_t>(samples.size() * 2));
  for (const int16_t sample : samples) number(sample);
  const auto size = static_cast<uint32_t>(bytes.size() - 8);
  std::memcpy(bytes.data() + 4, &size, sizeof size);
  write_bytes(path, bytes);
}

// Two speakers with tones instead of digits, named as those of the Free Spoken Digit Dataset; recordings for all sets.
inline void write_digits(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const char* speaker : {"ann", "bob"})
    for (int digit = 0; digit < 10; ++digit)
      for (const int index : {0, 5, 10, 11}) {
        std::vector<int16_t> samples;
        for (int n = 0; n < 1500 + 100 * digit; ++n)
          samples.push_back(static_cast<int16_t>(3000 * std::sin(n * (0.1 + 0.05 * digit + 0.001 * index))));
        write_wav(folder / (std::to_string(digit) + "_" + speaker + "_" + std::to_string(index) + ".wav"), samples);
      }
}

}  // namespace runnel::test
