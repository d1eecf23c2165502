// Pathfinder, a task of Long Range Arena, generated and kept on disk; and two rules that know nothing of paths, to
// compare results with.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "datasets/files.h"
#include "datasets/images.h"
#include "datasets/lra/pathfinder_image.h"

namespace runnel {

struct PathfinderOptions {
  std::string difficulty = "hard";  // as pathfinder_image says; Long Range Arena's task is the hard one
  int64_t count = 0;
  uint64_t seed = 0;
};

struct PathfinderSet {
  ImageSet images;                                   // 32 x 32, grey; classes "separate" and "connected"
  std::vector<std::array<uint8_t, 4>> markers = {};  // as in PathfinderImage, of each image
  int64_t generated = 0;                             // images that did not come from the cache
  std::filesystem::path cache = {};                  // the folder that keeps them; empty if there is none
};

// The first `count` images, the same on any number of threads. They are kept in files of 1,000 in a folder inside
// `cache`, each written when its images are there. So an interrupted generation continues there, and a larger set
// begins with the files of a smaller one. A damaged file is written anew. No cache is kept if `cache` is empty or
// cannot be written. progress(done, of) is called after each file; what it throws ends the generation.
PathfinderSet pathfinder_images(const PathfinderOptions& options,
                                const std::filesystem::path& cache = cache_directory(),
                                const std::function<void(int64_t, int64_t)>& progress = {});

// The share of right answers, over the images after the first `train`, of what these learn from the first `train`:
// the best threshold for the distance between the two markers,
double marker_distance_accuracy(const PathfinderSet& set, int64_t train);
// and a logistic regression on the pixels of images of two classes.
double pixel_regression_accuracy(const ImageSet& images, int64_t train);

}  // namespace runnel
