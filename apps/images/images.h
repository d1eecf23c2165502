// The tasks on images: a data set and its flags, how a trained model is opened, and the commands train,
// evaluate, sample, complete and state. Images are sequences of bytes, as in section 4.2 of the paper.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/terminal.h"
#include "apps/cli/trained_model.h"
#include "apps/plots/pictures.h"
#include "apps/training/model_settings.h"
#include "datasets/image_folder.h"
#include "datasets/images.h"
#include "models/decoder.h"

namespace runnel {

struct TrainingImages {
  ImageSet train;
  ImageSet validation;               // chooses the best checkpoint
  std::vector<int64_t> first_bytes;  // how many training images have which first byte, which no model predicts: [256]
};

// A data set and the name of its subcommand.
struct ImageDataset {
  std::string name, help;
  std::string data_help;  // of --data
  int64_t side;           // of the images as they are, or the default of --side
  Choices sides;          // that they can be scaled down to; empty: any
  int64_t channels;       // 1 or 3; 0: --grey or --colour says
  int64_t keep;           // bytes of a whole image that `complete` gives if it is not told; 0: half
  TrainingImages (*load_training)(const std::string& data, int64_t side, int64_t channels);
  ImageSet (*load_test)(const std::string& data, int64_t side, int64_t channels);
};

// load_image_folder, which names what it leaves out.
ImageFolder load_pictures(const std::string& data, int64_t side, int64_t channels,
                          const std::function<void(int64_t, int64_t)>& progress);

// The last 200 training images are the validation set.
TrainingImages with_held_out(const ImageSet& all);
std::vector<int64_t> count_first_bytes(const ImageSet& images);  // [256]

struct ImageSettings : TransformerSettings {
  const ImageDataset* dataset = nullptr;
  int64_t side = 28;
  std::string position = "line";
  std::string distribution = "mixture";
  bool classes = false;
  bool grey = false, colour = false;  // of data sets that can be either
  std::string data;

  Settings list() override;
  int64_t channels() const { return dataset->channels ? dataset->channels : grey ? 1 : 3; }
};
// paper: the paper's model and training; small and tiny: the best that was found for an hour or less, and for a few
// minutes, on two cores. For line drawings such as MNIST's digits, and for photographs.
Presets drawing_presets();
Presets photograph_presets();

// Adds the subcommand with all its commands.
void add_image_task(Subcommand program, const ImageDataset& dataset, Presets (*presets)());

// --- shared by the commands ---

struct PictureOptions : ModelOptions {
  const ImageDataset* dataset = nullptr;
  std::string out;

  Settings list() override;
};

// A trained model, and where the command's picture goes.
struct LoadedImageModel {
  const ImageDataset& dataset;
  Checkpoint checkpoint;
  AutoregressiveTransformer model;
  int64_t side = 0, channels = 0;
  bool class_conditional = false;
  std::string data;  // that it was trained on
  std::vector<int64_t> first_bytes;
  std::vector<std::string> class_names;  // as many as the model knows
  std::filesystem::path out;

  // Throws if the model is not of such images, or if the picture cannot be written. With `is_folder`, out is a folder
  // of pictures, which make_folder makes, or throws.
  LoadedImageModel(const PictureOptions& options, const char* picture_name, bool is_folder = false);
  void make_folder() const;

  ImageSet test_images(const std::string& given) const;
  int64_t image_size() const { return side * side * channels; }  // bytes
  // The number of a class, by number or name; -1 for "-1". Throws UsageError if there is no such class.
  int64_t class_number(const std::string& text) const;
  Picture picture_of(std::span<const uint8_t> bytes, int64_t known = INT64_MAX) const {
    return picture(bytes, side, side, channels, known);
  }
};

// -log P of each predicted byte in nats, summed over the images: [n-1]; class-conditional: [n].
std::vector<double> nll_by_position(const AutoregressiveTransformer& model, const ImageSet& images,
                                    bool class_conditional, const std::function<void(int64_t, int64_t)>& progress);

// Images drawn from the model of `start`, a decoder of one sequence that has read nothing; image i from seed.fold(i):
// the same whatever is drawn with it. The first byte is drawn as often as `first_bytes` says. A class-conditional model
// draws images of `wanted`, or if that is negative of each class in turn, first byte and all.
std::vector<uint8_t> generate(const Decoder& start, Key seed, int64_t first, int64_t count,
                              const std::vector<int64_t>& first_bytes, int64_t wanted, double temperature,
                              const std::function<void(int64_t, int64_t)>& progress);

// `count` images of which each of processes() draws some, on all of them: draw_some(begin, end) returns the bytes of
// images begin .. end - 1.
std::vector<uint8_t> divided_images(int64_t count,
                                    const std::function<std::vector<uint8_t>(int64_t begin, int64_t end)>& draw_some);

// Of sample and complete.
struct DrawOptions : PictureOptions {
  double temperature = 1;
  bool cached = false;
  std::string state_precision = "f32";

  Settings list() override;
  bool decodes() const override { return true; }
};
// As the flags say, with the attention's decode state or recomputing the prefix. UsageError if its kind cannot do that.
std::unique_ptr<Decoder> decoder_for(const LoadedImageModel& loaded, const DrawOptions& options, int64_t batch);

// The numbers of --index, such as "1,5,20-25": 1 5 20 21 22 23 24 25. UsageError if it is no list of numbers below
// `count`.
std::vector<int64_t> parse_index(const std::string& text, int64_t count);

inline std::span<const uint8_t> image_of(const std::vector<uint8_t>& images, int64_t i, int64_t size) {
  return {images.data() + i * size, static_cast<size_t>(size)};
}
// The class token or byte that a model reads as token t of these images: [B].
Indices tokens_at(const ImageSet& images, bool class_conditional, const std::vector<int64_t>& numbers, int64_t t,
                  Device device);
constexpr int64_t stages = 8;  // at which something that grows is shown

void add_training_command(Subcommand task, const ImageDataset& dataset, const Presets& presets);
void add_evaluate(Subcommand task, const ImageDataset& dataset);
void add_sample(Subcommand task, const ImageDataset& dataset);
void add_complete(Subcommand task, const ImageDataset& dataset);
void add_state(Subcommand task, const ImageDataset& dataset);

}  // namespace runnel
