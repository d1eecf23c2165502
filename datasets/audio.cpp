#include "datasets/audio.h"

#include <sndfile.h>

#include <cmath>
#include <memory>

#include "engine/check.h"

namespace runnel {

Audio read_audio(const std::filesystem::path& path) {
  SF_INFO info{};
  const std::unique_ptr<SNDFILE, int (*)(SNDFILE*)> file(sf_open(path.c_str(), SFM_READ, &info), sf_close);
  check(file != nullptr, path.string(), ": no recording that can be read: ", sf_strerror(nullptr));
  constexpr sf_count_t frames_at_once = 1 << 16;
  constexpr float full_scale = 32768;
  Audio audio{{}, info.samplerate};
  // Read as it comes: a damaged header may promise any length.
  std::vector<float> part(static_cast<size_t>(frames_at_once * info.channels));
  for (sf_count_t frames; (frames = sf_readf_float(file.get(), part.data(), frames_at_once)) > 0;)
    for (sf_count_t i = 0; i < frames; ++i) {
      float sum = 0;
      for (int c = 0; c < info.channels; ++c) sum += part[static_cast<size_t>(i * info.channels + c)];
      check(std::isfinite(sum), path.string(), ": sample ", audio.samples.size(), " is not a finite number");
      audio.samples.push_back(full_scale * sum / static_cast<float>(info.channels));
    }
  check(sf_error(file.get()) == SF_ERR_NO_ERROR, path.string(), ": damaged: ", sf_strerror(file.get()));
  return audio;
}

}  // namespace runnel
