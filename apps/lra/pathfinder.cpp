// runnel lra pathfinder: whether a dashed path connects two markers (Long Range Arena's Pathfinder, 32 x 32).
#include "datasets/lra/pathfinder.h"

#include "apps/images/images.h"
#include "apps/lra/classification.h"
#include "datasets/files.h"
#include "datasets/image_folder.h"
#include "datasets/lra/image_sequences.h"
#include "engine/check.h"

namespace runnel {
namespace {

// 80% for training, 10% for validation, 10% for the test.
int64_t training_images(const ClassificationSettings& settings) { return settings.generated / 10 * 8; }

PathfinderSet images_of(const ClassificationSettings& settings, const WorkDone& report) {
  return pathfinder_images({.difficulty = settings.difficulty, .count = settings.generated}, cache_directory(), report);
}

}  // namespace

const ClassificationDataset tasks::pathfinder{
    .name = "pathfinder",
    .help = "whether a dashed path connects two markers (Long Range Arena)",
    .data_help = "folder with a sub-folder of pictures for each of two classes; default: generated once and cached",
    .vocabulary = 257,
    .side = 32,
    .is_generated = true,
    .difficulties = {"easy", "intermediate", "hard"},
    .load = [](const ClassificationSettings& settings, const WorkDone& report) -> ClassificationData {
      if (!settings.data.empty()) {
        const ImageFolder folder = load_pictures(settings.data, 32, 1, report);
        check(folder.train.class_names.size() == 2, settings.data, ": ", folder.train.class_names.size(),
              " classes; Pathfinder has two, a sub-folder of pictures for each");
        return {grey_sequences(folder.train), grey_sequences(folder.validation), grey_sequences(folder.test)};
      }
      const ImageSet images = images_of(settings, report).images;
      const int64_t train = training_images(settings), rest = (images.count - train) / 2;
      return {grey_sequences(slice(images, 0, train)), grey_sequences(slice(images, train, rest)),
              grey_sequences(slice(images, train + rest, images.count - train - rest))};
    },
    .probes = [](const ClassificationSettings& settings, const ClassificationData& data) -> std::vector<Probe> {
      if (!settings.data.empty()) return {};
      const PathfinderSet set = images_of(settings, {});
      const int64_t train = data.train.count();
      return {{"the distance of the markers", 100 * marker_distance_accuracy(set, train)},
              {"a logistic regression on pixels", 100 * pixel_regression_accuracy(set.images, train)}};
    }};

}  // namespace runnel
