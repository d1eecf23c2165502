// sample: new images, drawn byte after byte.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/images/images.h"
#include "engine/check.h"

namespace runnel {
namespace {

struct SampleOptions : DrawOptions {
  int64_t count = 64;
  std::string wanted = "-1";
  bool growth = false, single = false;

  Settings list() override {
    return extended(DrawOptions::list(),
                    {{"count", &count, in_range(1, 1e7), "images to generate"},
                     {"class", &wanted, {}, "class to draw, by number or name (train --classes); -1: each in turn"},
                     {"growth", &growth, {}, "show how each image grows"},
                     {"single", &single, {}, "write each image to a PNG of its own in the folder --out"}});
  }
};

int sample(SampleOptions& o) {
  constexpr int64_t cells = 10000, at_once = 16384;
  const int64_t largest = o.growth ? cells / stages : cells;
  check<UsageError>(!o.single || !o.growth, "--growth and --single: give one of them");
  check<UsageError>(o.single || o.count <= largest, "--count ", o.count, ": a sheet shows at most ", largest,
                    "; --single writes each to a file of its own");
  const LoadedImageModel loaded(o, o.single ? "images" : o.growth ? "growth.png" : "samples.png", o.single);
  const int64_t wanted = loaded.class_number(o.wanted);
  const std::unique_ptr<Decoder> decoder = decoder_for(loaded, o, 1);
  if (o.single) loaded.make_folder();
  const auto start = std::chrono::steady_clock::now();
  std::vector<Picture> pictures;
  const int64_t n = loaded.image_size();
  for (int64_t first = 0; first < o.count; first += at_once) {
    const int64_t count = std::min(at_once, o.count - first);
    const std::vector<uint8_t> drawn = generate(*decoder, key_for(o.seed, Purpose::sampling), first, count,
                                                loaded.first_bytes, wanted, o.temperature, Progress("drew byte"));
    for (int64_t i = 0; i < count; ++i) {
      if (o.single)
        write_png(loaded.out / fmt::format("{:05}.png", first + i), loaded.picture_of(image_of(drawn, i, n)));
      for (int64_t stage = 1; o.growth && stage < stages; ++stage)
        pictures.push_back(loaded.picture_of(image_of(drawn, i, n), n * stage / stages));
      if (!o.single) pictures.push_back(loaded.picture_of(image_of(drawn, i, n)));
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{} images of {} x {} in {:.2f} s: {:.2f} images/s\n", o.count, loaded.side, loaded.side, seconds,
             static_cast<double>(o.count) / seconds);
  const int64_t columns = o.growth ? stages : std::llround(std::ceil(std::sqrt(static_cast<double>(o.count))));
  if (!o.single) write_png(loaded.out, sheet(pictures, columns));
  fmt::print("{}\n", loaded.out.string());
  return 0;
}

}  // namespace

void add_sample(Subcommand task, const ImageDataset& dataset) {
  add_command<SampleOptions>(task, dataset, "sample", "generate images", sample);
}

}  // namespace runnel
