#include "datasets/speech/fbank.h"

#include <numbers>

#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// round(8000 sin(2 pi 440 n / rate) + 3000 sin(2 pi 1333 n / rate))
std::vector<float> two_tones(int64_t count, int64_t rate = 8000) {
  std::vector<float> samples;
  for (int64_t n = 0; n < count; ++n) {
    const double t = 2 * std::numbers::pi * static_cast<double>(n) / static_cast<double>(rate);
    samples.push_back(static_cast<float>(std::round(8000 * std::sin(440 * t) + 3000 * std::sin(1333 * t))));
  }
  return samples;
}

}  // namespace

TEST_CASE("fbank: equals Kaldi's features of two tones") {  // kaldi-native-fbank 1.23.0
  const std::vector<double> first{8.6125,  8.5901,  8.4651,  10.7682, 11.7831, 11.6721, 14.2829, 17.5903,
                                  22.2440, 24.0279, 22.5117, 18.1352, 13.3677, 12.5866, 10.4564, 9.9950,
                                  9.3359,  9.5968,  10.7470, 12.8654, 15.6803, 23.4134, 24.1054, 20.1962,
                                  13.4530, 11.0665, 9.3673,  8.0415,  7.0291,  6.3203,  6.0522,  5.2990,
                                  5.4901,  4.8367,  5.4075,  4.5865,  4.5426,  4.9921,  5.4388,  4.9711};
  const std::vector<float> samples = two_tones(1000);
  const Fbank fbank({.rate = 8000});
  const std::vector<float> features = fbank(samples);
  REQUIRE(features.size() == 11 * 40);
  double total = 0;
  for (const float x : features) total += x;
  CHECK(std::abs(total - 5002.33) < 0.2);
  for (size_t i = 0; i < first.size(); ++i) CHECK(std::abs(features[i] - first[i]) < 0.005);
  const std::vector<double> last_begin{8.5001, 8.5720, 8.3258, 10.6915}, last_end{3.7741, 4.5914, 5.1049};
  for (size_t i = 0; i < last_begin.size(); ++i) CHECK(std::abs(features[400 + i] - last_begin[i]) < 0.005);
  for (size_t i = 0; i < last_end.size(); ++i) CHECK(std::abs(features[437 + i] - last_end[i]) < 0.005);
}

TEST_CASE("fbank: equals Kaldi's where a frame is no whole number of samples") {  // kaldi-native-fbank 1.23.0
  const struct {
    int64_t rate, window, shift;
    double sum;
    std::vector<double> later;  // features 0, 10, 20 and 39 of frame 50
  } all[] = {{11025, 275, 110, 44215.566, {8.7041, 15.8424, 20.2416, 5.7063}},
             {22050, 551, 220, 41830.863, {9.5259, 10.3778, 5.8958, 7.9001}},
             {44100, 1102, 441, 41178.055, {10.3737, 16.8689, 5.2215, 9.4042}}};
  for (const auto& kaldi : all) {
    CAPTURE(kaldi.rate);
    const Fbank fbank({.rate = kaldi.rate});
    CHECK(fbank.window() == kaldi.window);
    CHECK(fbank.shift() == kaldi.shift);
    const std::vector<float> features = fbank(two_tones(kaldi.rate, kaldi.rate));
    REQUIRE(features.size() == 98 * 40);
    double sum = 0;
    for (const float x : features) sum += x;
    CHECK(std::abs(sum - kaldi.sum) < 2);
    for (size_t i = 0; i < 4; ++i)
      CHECK(std::abs(features[50 * 40 + std::vector<size_t>{0, 10, 20, 39}[i]] - kaldi.later[i]) < 0.005);
  }
}

TEST_CASE("fbank: numbers of frames, silence, and 16 kHz") {
  const Fbank fbank({.rate = 8000}), mirrored({.rate = 8000, .snip_edges = false}), fast({.rate = 16000});
  CHECK(fbank.frames(0) == 0);
  CHECK(fbank.frames(199) == 0);
  CHECK(fbank.frames(200) == 1);
  CHECK(fbank.frames(279) == 1);
  CHECK(fbank.frames(280) == 2);
  CHECK(mirrored.frames(1000) == 13);
  CHECK(mirrored(two_tones(1000)).size() == 13 * 40);
  CHECK(mirrored(two_tones(50)).size() == 40);  // shorter than a window
  CHECK(fast.window() == 400);
  CHECK(fast.shift() == 160);
  CHECK(fbank(two_tones(100)).empty());
  for (const float x : fbank(std::vector<float>(400, 5))) {
    CHECK(x == digital_silence);
    CHECK(std::abs(x - -15.9424f) < 1e-3f);
  }
  // The features of a part are those of the whole.
  const std::vector<float> samples = two_tones(1000), whole = fbank(samples);
  const std::vector<float> part = fbank(std::span(samples).subspan(160, 360));
  CHECK(part == std::vector<float>(whole.begin() + 2 * 40, whole.begin() + 5 * 40));
}

TEST_CASE("fbank: impossible configurations") {
  check_fails([] { Fbank({.rate = 0}); }, "fbank: a window of 0.025 s");
  check_fails([] { Fbank({.rate = 8000, .bins = 0}); }, "fbank: 0 bins");
  check_fails([] { Fbank({.rate = 8000, .lowest = 5000}); }, "from 5000 to 4000 Hz");
}
