#include "datasets/lra/pathfinder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <type_traits>

#include "datasets/cache_file.h"
#include "engine/check.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr int64_t per_file = 1000, image_side = 32;
static_assert(std::is_trivially_copyable_v<PathfinderImage> &&
              std::has_unique_object_representations_v<PathfinderImage>);

// None if there is no such file, or it cannot be used.
std::vector<PathfinderImage> read_images(const CacheFile& file) {
  std::vector<PathfinderImage> images;
  const auto take = [&](Archive& archive) {
    images.resize(archive.left() / sizeof(PathfinderImage));
    archive.numbers(std::span(images));
    for (const PathfinderImage& image : images) {
      check(image.connected == 0 || image.connected == 1, "a label ", image.connected, " of two classes");
      check(std::ranges::all_of(image.markers, [](uint8_t place) { return place < image_side; }),
            "a marker outside its image");
    }
  };
  if (!file.read(take, per_file * sizeof(PathfinderImage))) images.clear();
  return images;
}

// The share of right answers to images first .. count - 1.
template <class IsConnected>
double accuracy(const ImageSet& images, int64_t first, const IsConnected& is_connected) {
  int64_t right = 0;
  for (int64_t i = first; i < images.count; ++i)
    right += is_connected(i) == (images.labels[static_cast<size_t>(i)] == 1);
  return static_cast<double>(right) / static_cast<double>(images.count - first);
}

void check_parts(const char* what, const ImageSet& images, int64_t train) {
  check(images.class_names.size() == 2, what, ": ", images.name, " has ", images.class_names.size(),
        " classes; two are needed");
  check(train > 0 && train < images.count, what, ": ", train, " images of ", images.count,
        " to learn from; at least one is needed, and one more to test with");
}

}  // namespace

PathfinderSet pathfinder_images(const PathfinderOptions& options, const fs::path& cache,
                                const std::function<void(int64_t, int64_t)>& progress) {
  const std::string& difficulty = options.difficulty;
  const int64_t count = options.count;
  const uint64_t seed = options.seed;
  check(count > 0, "pathfinder: a set of ", count, " images");
  pathfinder_image(difficulty, seed, 0);  // throws here, and not in the parallel loop, if there is no such difficulty
  const std::string name = "Pathfinder (" + difficulty + ", generated with seed " + std::to_string(seed) + ")";
  PathfinderSet set{{name, count, image_side, image_side, 1, {}, {}, {"separate", "connected"}}};
  const std::string kind = difficulty + "-" + std::to_string(seed);
  if (!cache.empty()) set.cache = cache / ("pathfinder-" + kind);

  set.images.pixels.reserve(static_cast<size_t>(count * set.images.size()));
  for (int64_t first = 0; first < count; first += per_file) {
    const int64_t wanted = std::min(per_file, count - first);
    const std::string number = std::to_string(first / per_file);
    // The number before `pathfinder` is another one when images of the same seed become others.
    const CacheFile file(set.cache / number, "1 pathfinder " + kind + " " + number);
    std::vector<PathfinderImage> images;
    if (!set.cache.empty()) images = read_images(file);
    if (const int64_t known = std::ssize(images); known < wanted) {
      images.resize(static_cast<size_t>(wanted));
#pragma omp parallel for schedule(dynamic)
      for (int64_t i = known; i < wanted; ++i)
        images[static_cast<size_t>(i)] = pathfinder_image(difficulty, seed, first + i);
      set.generated += wanted - known;
      if (!set.cache.empty() && !file.write({as_chars(images)})) set.cache.clear();
    }
    if (progress) progress(first + wanted, count);
    for (int64_t i = 0; i < wanted; ++i) {
      const PathfinderImage& image = images[static_cast<size_t>(i)];
      set.images.pixels.insert(set.images.pixels.end(), image.pixels.begin(), image.pixels.end());
      set.images.labels.push_back(image.connected);
      set.markers.push_back(image.markers);
    }
  }
  return set;
}

double marker_distance_accuracy(const PathfinderSet& set, int64_t train) {
  check_parts("marker_distance_accuracy", set.images, train);
  const auto squared = [&](int64_t i) {
    const auto& [y, x, v, u] = set.markers[static_cast<size_t>(i)];
    return static_cast<size_t>((y - v) * (y - v) + (x - u) * (x - u));
  };
  constexpr size_t farthest = 2 * (image_side - 1) * (image_side - 1);
  std::array<int64_t, farthest + 1> excess{};  // of connected images, first of each distance, then of those from it on
  for (int64_t i = 0; i < train; ++i) excess[squared(i)] += set.images.labels[static_cast<size_t>(i)] ? 1 : -1;
  for (size_t d = farthest; d > 0; --d) excess[d - 1] += excess[d];

  // Right answers minus wrong ones, if those from distance d on count as connected; negative: as separate.
  const auto gain = [&](size_t d) { return 2 * excess[d] - excess[0]; };
  size_t best = 0;
  for (size_t d = 0; d <= farthest; ++d)
    if (std::abs(gain(d)) > std::abs(gain(best))) best = d;
  return accuracy(set.images, train, [&](int64_t i) { return (squared(i) >= best) == (gain(best) > 0); });
}

double pixel_regression_accuracy(const ImageSet& images, int64_t train) {
  check_parts("pixel_regression_accuracy", images, train);
  constexpr int epochs = 5;
  constexpr float first_rate = 0.02f, white = 255;
  const size_t n = static_cast<size_t>(images.size());
  std::vector<float> weights(n);
  float bias = 0;
  const auto logit = [&](int64_t i) {
    const auto pixels = images.image(i);
    float sum = bias;
    for (size_t p = 0; p < n; ++p) sum += weights[p] * pixels[p];
    return sum;
  };
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (int64_t i = 0; i < train; ++i) {
      const float probability = 1 / (1 + std::exp(-logit(i)));
      const float error = static_cast<float>(images.labels[static_cast<size_t>(i)]) - probability;
      const float rate = first_rate / static_cast<float>(1 + epoch);
      const auto pixels = images.image(i);
      for (size_t p = 0; p < n; ++p) weights[p] += rate * error / (white * white) * pixels[p];
      bias += rate * error;
    }
  return accuracy(images, train, [&](int64_t i) { return logit(i) > 0; });
}

}  // namespace runnel
