#include "datasets/speech/audio.h"

#include <sndfile.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>

#include "datasets/speech/fbank.h"
#include "engine/check.h"
#include "engine/file.h"

namespace runnel {
namespace {

// The samples of a WAV file that was cut off are, to libsndfile, those that are there; its header says how many there
// were.
void check_wav_is_whole(int file, int64_t bytes, const std::string& name) {
  std::array<unsigned char, 12> head;
  if (pread(file, head.data(), 12, 0) != 12 || std::memcmp(head.data(), "RIFF", 4) != 0) return;
  for (int64_t at = 12; pread(file, head.data(), 8, at) == 8;) {
    const int64_t size = head[4] | head[5] << 8 | head[6] << 16 | int64_t{head[7]} << 24;
    at += 8;
    if (std::memcmp(head.data(), "data", 4) == 0) {
      constexpr int64_t unknown = 0x7f000000;  // some 2^31 or 2^32, where a pipe was written to
      check(size <= bytes - at || size >= unknown, name, ": damaged: it has ", bytes - at, " of ", size,
            " bytes of samples");
      return;
    }
    at += size + size % 2;
  }
}

// Whether an MP3 file says how long it is, behind its ID3 tag; without that, libsndfile estimates it.
bool mp3_says_its_length(int file) {
  std::array<unsigned char, 64> head;
  int64_t at = 0;
  if (pread(file, head.data(), 10, 0) == 10 && std::memcmp(head.data(), "ID3", 3) == 0)
    at = 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]);
  if (pread(file, head.data(), head.size(), at) != std::ssize(head)) return false;
  const std::string_view frame(reinterpret_cast<const char*>(head.data()), head.size());
  return frame.find("Xing") != frame.npos || frame.find("Info") != frame.npos;
}

// How many samples there must be at least; -1: an end that is not there.
int64_t promised(const SF_INFO& info, int file) {
  const bool is_known = info.frames != SF_COUNT_MAX;
  constexpr int mpeg = 0x230000;   // SF_FORMAT_MPEG, since libsndfile 1.1
  constexpr int64_t frame = 1152;  // encoders differ in whether they count the one that says the length
  switch (info.format & SF_FORMAT_TYPEMASK) {
    case mpeg:
      return mp3_says_its_length(file) ? info.frames - 2 * frame : 0;
    case SF_FORMAT_OGG:
      return is_known && info.frames > 0 ? info.frames : -1;  // an unknown length is 0 from libsndfile 1.2 on
    default:
      return is_known ? info.frames : 0;
  }
}

}  // namespace

Audio read_audio(const std::filesystem::path& path, int64_t longest) {
  const std::string name = path.string();
  const int descriptor = open_regular_file(path);
  SF_INFO info{};
  const std::unique_ptr<SNDFILE, int (*)(SNDFILE*)> file(sf_open_fd(descriptor, SFM_READ, &info, SF_TRUE), sf_close);
  check(file != nullptr, name, ": no recording that can be read: ", sf_strerror(nullptr));
  check_wav_is_whole(descriptor, static_cast<int64_t>(std::filesystem::file_size(path)), name);
  constexpr int64_t max_numbers = 1 << 16;  // at a time: a damaged header may promise any length
  const int64_t frames_at_once = std::max<int64_t>(max_numbers / info.channels, 1);
  constexpr float full_scale = 32768;
  const double rate = info.samplerate, most = rate * (window_seconds + frame_seconds * static_cast<double>(longest));
  Audio audio{{}, info.samplerate};
  std::vector<float> part(static_cast<size_t>(frames_at_once * info.channels));
  for (sf_count_t frames; (frames = sf_readf_float(file.get(), part.data(), frames_at_once)) > 0;) {
    for (sf_count_t i = 0; i < frames; ++i) {
      float sum = 0;
      for (int c = 0; c < info.channels; ++c) sum += part[static_cast<size_t>(i * info.channels + c)];
      constexpr float largest = 1 << 30;  // floating-point files hold integers, too
      check(std::abs(sum) <= largest, name, ": sample ", audio.samples.size(), " is ", sum, ", which is no sound");
      audio.samples.push_back(full_scale * sum / static_cast<float>(info.channels));
    }
    check(static_cast<double>(audio.samples.size()) < most, name, ": longer than ", longest,
          " frames of 10 ms, the most that --length allows");
    // The next read forgets the error of one that ended early.
    check(sf_error(file.get()) == SF_ERR_NO_ERROR, name, ": damaged: ", sf_strerror(file.get()));
  }
  const int64_t least = promised(info, descriptor);
  check(least >= 0, name, ": damaged: its end is not there, or there is no sound in it");
  check(std::ssize(audio.samples) >= least, name, ": damaged: it has ", audio.samples.size(), " of ", info.frames,
        " samples");
  check(static_cast<double>(audio.samples.size()) >= window_seconds * rate, name, ": shorter than a frame of 25 ms");
  return audio;
}

}  // namespace runnel
