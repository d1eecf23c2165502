// evaluate: bits/dim on the test images, and a heat map of the bits of each byte.
#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <numeric>

#include "apps/images/images.h"

namespace runnel {
namespace {

struct ImageEvaluateOptions : PictureOptions {
  std::string data;
  int64_t limit = 0;

  Settings list() override {
    return extended(PictureOptions::list(),
                    {{"data", &data, {}, "as in train; default: what the model was trained on"},
                     {"limit", &limit, in_range(0, 1e9), "evaluate only the first test images; 0: all"},
                     json_flag()});
  }
};

// Nats per byte -> bits per byte ("bits/dim").
double mean(const std::vector<double>& total, int64_t images) {
  return std::accumulate(total.begin(), total.end(), 0.0) / static_cast<double>(images) /
         static_cast<double>(total.size());
}

int evaluate(ImageEvaluateOptions& o) {
  const LoadedImageModel loaded(o, "bits.png");
  ImageSet images = loaded.test_images(o.data);
  if (o.limit && o.limit < images.count) images = slice(images, 0, o.limit);

  std::vector<double> bits = nll_by_position(loaded.model, images, loaded.class_conditional, Progress("evaluated"));
  for (double& b : bits) b /= std::numbers::ln2;
  const double bits_per_dim = mean(bits, images.count);
  const size_t predicted = bits.size();
  if (!o.json)
    fmt::print("{:.4f} bits/dim over {} bytes of each of {} images of {} x {}, {}\n", bits_per_dim, predicted,
               images.count, loaded.side, loaded.side, images.name);

  for (double& b : bits) b /= static_cast<double>(images.count);
  const double largest = *std::max_element(bits.begin(), bits.end());
  if (!loaded.class_conditional) bits.insert(bits.begin(), 0);  // the first byte is not predicted
  // The channels side by side: [side,channels,side].
  const int64_t channels = loaded.channels, width = channels * loaded.side;
  std::vector<double> map(bits.size());
  for (int64_t i = 0; i < std::ssize(bits); ++i)
    map[static_cast<size_t>(i / width * width + i % channels * loaded.side + i % width / channels)] =
        bits[static_cast<size_t>(i)];
  write_png(loaded.out, heat_map(map, loaded.side, width, largest, 336 / loaded.side));
  if (o.json) {
    print_json({{"model", loaded.checkpoint.path.string()},
                {"step", loaded.checkpoint.step()},
                {"bits_per_dim", bits_per_dim},
                {"data", images.name},
                {"images", images.count},
                {"bytes_of_each", predicted},
                {"side", loaded.side},
                {"channels", loaded.channels},
                {"largest_mean_bits", largest},
                {"out", loaded.out.string()}});
    return 0;
  }
  fmt::print("{}: mean bits of each byte{}, from 0 (black) to {:.2f} (pale yellow)\n", loaded.out.string(),
             channels == 3 ? ", red, green, blue" : "", largest);
  return 0;
}

}  // namespace

void add_evaluate(Subcommand task, const ImageDataset& dataset) {
  add_command<ImageEvaluateOptions>(task, dataset, "evaluate",
                                    "bits/dim on the test images, and a heat map of each byte's", evaluate);
}

}  // namespace runnel
