// What `runnel mnist` and `runnel cifar10` share: a data set of images and its flags (images.cpp trains and evaluates,
// drawing.cpp generates), and how a trained model is opened.
#pragma once
#include <chrono>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "apps/options.h"
#include "apps/pictures.h"
#include "apps/training.h"
#include "datasets/files.h"
#include "datasets/images.h"

namespace runnel {

// One of the data sets.
struct ImageData {
  std::string name;  // of the subcommand
  int64_t side, channels;
  std::vector<std::string> sides;  // that images can be scaled down to
  const char* data_help;           // of --data
  int64_t keep;                    // bytes of a whole image that `complete` gives if it is not told
  ImageSet (*load)(const std::string& data, Split split);
};

// The split as --data says it, in images of side x side.
ImageSet load(const ImageData& set, const std::string& data, Split split, int64_t side);

// How many of the training images have which first byte, which no model predicts: [256].
std::vector<int64_t> first_bytes(const ImageSet& images);

// One line on the terminal that is written over, with the time that is left; nothing when stderr is a file.
class Progress {
 public:
  explicit Progress(const char* what) : what_(what) {}
  void operator()(int64_t done, int64_t of) const;

 private:
  const char* what_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

struct UseOptions : Machine {
  const ImageData* set = nullptr;
  std::string model, out;

  template <class Each>
  void each(Each&& option) {
    Machine::each(option);
    option("model", model, Allowed(), "a run folder, or a .safetensors file");
    option("out", out, Allowed(), "the PNG file to write; beside the checkpoint if not given");
  }
};

// A trained model and where its picture goes.
struct Use {
  const ImageData& set;
  Checkpoint checkpoint;
  int64_t side;
  bool classes;      // it is told the class of its image
  std::string data;  // that it was trained on
  std::vector<int64_t> first_bytes;
  std::filesystem::path out;

  // Throws if the model is not of such images, or if the picture cannot be written. With `folder`, out is one of
  // pictures, which make_folder makes, or throws.
  Use(const UseOptions& options, const char* picture_name, bool folder = false);
  void make_folder() const;

  ImageSet test_images(const std::string& given) const {
    return load(set, given.empty() ? data : given, Split::test, side);
  }
  int64_t image_size() const { return side * side * set.channels; }
  Picture picture_of(std::span<const uint8_t> bytes, int64_t known = INT64_MAX) const {
    return picture(bytes, side, side, set.channels, known);
  }
};

// Images drawn from a model, image i from seed.fold(i): the same whatever is drawn with it. The first byte is drawn as
// often as `first_bytes` says. A model that is told the class of its image is told `wanted`, or if that is negative
// each in turn; all of its bytes are its own.
std::vector<uint8_t> generate(const Transformer& model, bool stateful, Key seed, int64_t first, int64_t count,
                              const std::vector<int64_t>& first_bytes, int64_t wanted, double temperature,
                              bool show_progress);

void add_drawing(Word app, Command& chosen, const ImageData& set);

}  // namespace runnel
