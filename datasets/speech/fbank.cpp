// For each frame, in Kaldi's order: less its mean; pre-emphasis x[i] - 0.97 x[i-1]; Povey's window; the power spectrum,
// of a power of two of samples; triangular filters, which are linear on the mel scale and not normalised by their area;
// the logarithm. In double: in float, the low filters of quiet recordings are mostly rounding errors.
#include "datasets/speech/fbank.h"

#include <fftw3.h>

#include <bit>
#include <cmath>
#include <mutex>
#include <numbers>

#include "engine/check.h"

namespace runnel {
namespace {

double mel(double frequency) { return 1127 * std::log(1 + frequency / 700); }

constexpr double pre_emphasis = 0.97;
constexpr double min_energy = 1.1920929e-07;  // float32's epsilon

int64_t samples_in(double seconds, int64_t rate) {  // in Kaldi's order of multiplications, and truncated
  return static_cast<int64_t>(static_cast<double>(rate) * 0.001 * (1000 * seconds));
}

std::mutex& planner() {  // FFTW's planner is not for several threads at once; executing a plan is
  static std::mutex one;
  return one;
}

}  // namespace

const float digital_silence = static_cast<float>(std::log(min_energy));

struct Fbank::Transform {
  struct Buffers {  // aligned as the plan's
    double* in;
    fftw_complex* out;
    explicit Buffers(int64_t size)
        : in(fftw_alloc_real(static_cast<size_t>(size))), out(fftw_alloc_complex(static_cast<size_t>(size / 2 + 1))) {}
    ~Buffers() {
      fftw_free(in);
      fftw_free(out);
    }
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;
  };
  fftw_plan plan;

  explicit Transform(int64_t size) {
    const Buffers buffers(size);
    const std::lock_guard lock(planner());
    plan = fftw_plan_dft_r2c_1d(static_cast<int>(size), buffers.in, buffers.out, FFTW_ESTIMATE);
    check(plan != nullptr, "fbank: FFTW has no transform of ", size, " samples");
  }
  ~Transform() {
    const std::lock_guard lock(planner());
    fftw_destroy_plan(plan);
  }
  Transform(const Transform&) = delete;
  Transform& operator=(const Transform&) = delete;
};

Fbank::Fbank(const FbankConfig& c)
    : config_(c), window_(samples_in(c.window, c.rate)), shift_(samples_in(c.shift, c.rate)), size_(0) {
  const double highest = static_cast<double>(c.rate) / 2;
  check(c.rate > 0 && c.rate <= 1000000 && window_ > 1 && shift_ > 0 && c.window <= 1, "fbank: a window of ", c.window,
        " s and a shift of ", c.shift, " s at ", c.rate, " samples per second");
  check(c.bins > 0 && c.lowest >= 0 && c.lowest < highest, "fbank: ", c.bins, " bins from ", c.lowest, " to ", highest,
        " Hz");
  size_ = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(window_)));
  for (int64_t i = 0; i < window_; ++i) {
    const double turn = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(window_ - 1);
    shape_.push_back(std::pow(0.5 - 0.5 * std::cos(turn), 0.85));
  }
  const double low = mel(c.lowest), step = (mel(highest) - low) / static_cast<double>(c.bins + 1);
  for (int64_t b = 0; b < c.bins; ++b) {
    const double left = low + static_cast<double>(b) * step, centre = left + step, right = centre + step;
    Filter filter{0, {}};
    for (int64_t k = 0; k < size_ / 2; ++k) {
      const double at = mel(static_cast<double>(k * c.rate) / static_cast<double>(size_));
      if (at <= left || at >= right) continue;
      if (filter.weights.empty()) filter.first = k;
      filter.weights.push_back(at <= centre ? (at - left) / step : (right - at) / step);
    }
    filters_.push_back(std::move(filter));
  }
  transform_ = std::make_unique<Transform>(size_);
}

Fbank::~Fbank() = default;

int64_t Fbank::frames(int64_t samples) const {
  if (!config_.snip_edges) return (samples + shift_ / 2) / shift_;
  return samples < window_ ? 0 : 1 + (samples - window_) / shift_;
}

std::vector<float> Fbank::operator()(std::span<const float> samples) const {
  const int64_t count = std::ssize(samples), rows = frames(count);
  std::vector<float> features;
  features.reserve(static_cast<size_t>(rows * config_.bins));
  const Transform::Buffers buffers(size_);
  const auto sample = [&](int64_t i) {
    while (i < 0 || i >= count) i = i < 0 ? -i - 1 : 2 * count - 1 - i;  // mirrored
    return static_cast<double>(samples[static_cast<size_t>(i)]);
  };
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = row * shift_ + (config_.snip_edges ? 0 : shift_ / 2 - window_ / 2);
    double* const x = buffers.in;
    double mean = 0;
    for (int64_t i = 0; i < window_; ++i) mean += x[i] = sample(first + i);
    mean /= static_cast<double>(window_);
    double before = x[0] - mean;
    for (int64_t i = 0; i < window_; ++i) {
      const double now = x[i] - mean;
      x[i] = (now - pre_emphasis * before) * shape_[static_cast<size_t>(i)];
      before = now;
    }
    std::fill(x + window_, x + size_, 0.0);
    fftw_execute_dft_r2c(transform_->plan, x, buffers.out);
    double* const power = x;  // which the transform has read
    for (int64_t k = 0; k < size_ / 2; ++k)
      power[k] = buffers.out[k][0] * buffers.out[k][0] + buffers.out[k][1] * buffers.out[k][1];
    for (const Filter& filter : filters_) {
      double energy = 0;
      for (size_t k = 0; k < filter.weights.size(); ++k)
        energy += filter.weights[k] * power[filter.first + static_cast<int64_t>(k)];
      features.push_back(static_cast<float>(std::log(std::max(energy, min_energy))));
    }
  }
  return features;
}

}  // namespace runnel
