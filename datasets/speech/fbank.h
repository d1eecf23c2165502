// Mel filterbank features, as Kaldi computes them (compute-fbank-feats) without dither.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace runnel {

constexpr double window_seconds = 0.025, frame_seconds = 0.01;  // of a frame, and from frame to frame
extern const float digital_silence;                             // each feature of a frame whose samples are all equal

struct FbankConfig {
  int64_t rate = 8000;  // samples per second
  int64_t bins = 40;    // filters
  double window = window_seconds;
  double shift = frame_seconds;
  double lowest = 20;      // Hz; the highest is half the rate
  bool snip_edges = true;  // only frames that lie in the recording as a whole; else its ends are mirrored
};

class Fbank {
 public:
  // Throws Error if the configuration is impossible.
  explicit Fbank(const FbankConfig& config);
  ~Fbank();

  int64_t window() const { return window_; }  // samples
  int64_t shift() const { return shift_; }
  int64_t frames(int64_t samples) const;
  // Logarithms of the filters' energies. samples: in units of 16-bit integers. -> [frames,bins]
  std::vector<float> operator()(std::span<const float> samples) const;

 private:
  struct Filter {
    int64_t first;                // bin of the spectrum
    std::vector<double> weights;  // of this bin and those behind it
  };
  struct Transform;

  FbankConfig config_;
  int64_t window_, shift_, size_;  // samples: of a frame, from frame to frame, of the Fourier transform
  std::vector<double> shape_;      // the window, by which a frame is multiplied
  std::vector<Filter> filters_;
  std::unique_ptr<Transform> transform_;
};

}  // namespace runnel
