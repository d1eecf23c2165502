// The training of an autoregressive transformer on images. The model reads bytes 0 .. n-2 and predicts the distribution
// of each next byte over its 256 values: as a mixture of 10 logistics, or by a logit for each value. There is no start
// token: the first byte is only an input. With --classes the image's class comes first, and all bytes are predicted.
#include <fmt/format.h>

#include <numeric>

#include "apps/images/images.h"
#include "apps/training/task.h"
#include "datasets/files.h"
#include "engine/check.h"
#include "engine/text.h"
#include "models/generation.h"
#include "models/local_heads.h"
#include "ops/elementwise.h"
#include "ops/losses.h"
#include "ops/reductions.h"

namespace runnel {

Settings ImageSettings::list() {
  Settings all = extended(
      TransformerSettings::list(),
      {{"side", &side, dataset->sides.empty() ? in_range(4, 256) : one_of(dataset->sides),
        "height and width of the images, scaled down if they are larger"},
       {"position", &position, one_of({"line", "grid"}),
        "positional encoding: of the byte's number, as in the paper, or of its row, column and channel"},
       {"distribution", &distribution, one_of({"mixture", "categorical"}),
        "predicted distribution of a byte: a mixture of 10 logistics, as in the paper, or a softmax over its values"},
       {"classes", &classes, {}, "condition the model on the class of each image, for sample --class"},
       {"data", &data, {}, dataset->data_help, OldFiles::have_it, true}});
  if (!dataset->channels)
    all = extended(all, {{"grey", &grey, {}, "images with one channel"},
                         {"colour", &colour, {}, "images with three channels (the default)"}});
  return all;
}

namespace {

class ImageTraining : public TaskOf<ByteBatch> {
 public:
  ImageTraining(const ImageSettings& settings, TrainingImages images)
      : settings_(settings), images_(std::move(images)), model_(new_model()) {}

  std::string name() const override { return settings_.dataset->name; }
  Parameters parameters() const override { return model_.parameters(); }
  nlohmann::json model() const override { return model_json(model_.config); }
  nlohmann::json data() const override {
    nlohmann::json kept{{"first_bytes", images_.first_bytes}, {"checksum", checksum(images_.train)}};
    if (!settings_.dataset->channels) kept["channels"] = settings_.channels();
    if (settings_.classes) kept["class_names"] = images_.train.class_names;
    return kept;
  }
  int64_t epoch() const override { return images_.train.count; }
  Unit loss_unit() const override { return Unit::bits_per_dim; }
  std::vector<Metric> metrics() const override { return {{"validation", Unit::bits_per_dim}}; }

  Slice slice(int64_t first, int64_t count) const override {
    const ByteBatch bytes = byte_batch(images_.train, first, count, Device::cpu, settings_.classes);
    return slice_of(bytes, static_cast<double>(count), bytes.tokens.size());
  }
  Tensor loss(const ByteBatch& bytes, std::optional<Key> key) const override {
    const Tensor nll = byte_nll(model_(bytes.tokens, key), bytes.targets);
    return scale(sum(nll), 1 / static_cast<float>(nll.size()));
  }
  std::vector<double> validate(const WorkDone& report) const override {
    const std::vector<double> nll = nll_by_position(model_, images_.validation, settings_.classes, report);
    return {std::accumulate(nll.begin(), nll.end(), 0.0) / static_cast<double>(images_.validation.count) /
            static_cast<double>(nll.size())};
  }
  std::vector<Picture> preview(const WorkDone& report) const override {
    const int64_t count = has_incremental_form(model_) ? 16 : 2;  // which then take as long as many
    const int64_t side = settings_.side, channels = settings_.channels(), size = side * side * channels;
    const std::unique_ptr<Decoder> start = make_decoder(model_, 1);
    const std::vector<uint8_t> drawn =
        generate(*start, key_for(settings_.seed, Purpose::sampling), 0, count, images_.first_bytes, -1, 1, report);
    std::vector<Picture> pictures;
    for (int64_t i = 0; i < count; ++i) pictures.push_back(picture(image_of(drawn, i, size), side, side, channels));
    return pictures;
  }

 private:
  AutoregressiveTransformer new_model() const {
    const ImageSettings& s = settings_;
    const int64_t size = s.side * s.side * s.channels();
    AutoregressiveConfig config =
        s.model_for(256 + (s.classes ? std::ssize(images_.train.class_names) : 0),
                    s.distribution == "categorical" ? 256 : 3 * 10, size - (s.classes ? 0 : 1));
    if (s.position == "grid") config.grid = {.row = s.side * s.channels(), .channels = s.channels()};
    const Key init = key_for(s.seed, Purpose::initialisation);
    AutoregressiveTransformer model(config, init, s.chosen_device());
    if (s.position == "grid") init_for_images(model, init);
    return model;
  }

  const ImageSettings& settings_;
  const TrainingImages images_;
  const AutoregressiveTransformer model_;
};

int train_images(ImageSettings& s) {
  check<UsageError>(!s.grey || !s.colour, "--grey and --colour: give one of them");
  s.model_for(256, 256, 1);  // refuses wrong flags before reading the data
  if (s.data != "synthetic" && (s.dataset->channels || !s.data.empty())) s.data = data_for_config(s.data);
  TrainingImages images = s.dataset->load_training(s.data, s.side, s.channels());
  check(!s.classes || !images.train.class_names.empty(), "--classes: ", images.train.name, " has no classes",
        s.dataset->channels ? "" : "; put the pictures of each class into a sub-folder of their own");
  say(fmt::format("data: {}, {} images of {} x {}{}; {} more choose the best checkpoint\n", images.train.name,
                  images.train.count, s.side, s.side,
                  s.classes ? fmt::format(" in {} classes", images.train.class_names.size()) : "",
                  images.validation.count));
  return train(ImageTraining(s, std::move(images)), s, config_json(s));
}

}  // namespace

Presets drawing_presets() {
  // small and tiny: found by experiment (docs/notes). In so little time narrow layers learn more, since they see more
  // images. A learning rate that begins high and is low for most of the run matters much; tight clipping and a small
  // beta2 keep it from diverging, and decay would weaken the initial heads. The largest gain is the spatial prior
  // (models/local_heads.h): heads start on neighbouring pixels, and heads as wide as a row is long tell all columns
  // apart. The next is the categorical distribution: the gradients of a mixture's means grow as its logistics narrow,
  // until they outweigh all others.
  return {{"paper",  // 250 epochs
           "--layers 8 --batch 10 --steps 1500000 --lr 1e-4 --schedule constant --attention-dropout 0.1 --buckets 64 "
           "--chunk 29 --evaluate-every 1000 --save-every 1000"},
          {"small",
           "--minutes 20 --steps 1000000 --position grid --distribution categorical --layers 4 --width 128 --heads 4 "
           "--feed-forward 384 --dropout 0 --attention-dropout 0 --batch 8 --optimizer muon --lr 2e-3 --schedule "
           "quadratic --weight-decay 0 --beta2 0.98 --clip 0.1 --log-every 100 --evaluate-every 5000 --save-every 5000",
           "paper"},
          {"tiny",
           "--minutes 3.5 --side 14 --layers 3 --width 96 --heads 2 --lr 3e-3 --evaluate-every 2000 --save-every 2000",
           "small"}};
}

Presets photograph_presets() {
  // paper: 300 epochs of CIFAR-10; how far the authors came in their week is not known. small: as of drawings, but with
  // a mixture: no level is so frequent here, and a mixture knows that they are ordered.
  return {{"paper",
           "--layers 16 --batch 4 --steps 3750000 --lr 1e-4 --schedule constant --attention-dropout 0.1 --buckets 64 "
           "--chunk 37 --evaluate-every 1000 --save-every 1000"},
          {"small",
           "--minutes 60 --steps 1000000 --side 32 --position grid --layers 4 --width 96 --heads 3 --feed-forward 256 "
           "--dropout 0 --attention-dropout 0 --optimizer muon --lr 1.5e-3 --schedule quadratic --weight-decay 0 "
           "--beta2 0.98 --clip 0.1 --log-every 100 --evaluate-every 2000 --save-every 2000",
           "paper"},
          {"tiny", "--minutes 5 --side 16", "small"}};
}

void add_training_command(Subcommand task, const ImageDataset& dataset, const Presets& presets) {
  ImageSettings defaults;
  defaults.dataset = &dataset;
  defaults.side = dataset.side;
  add_training<ImageSettings>(task, "train a model on these images", defaults, presets, train_images);
}

}  // namespace runnel
