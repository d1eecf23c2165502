// The training of a classifier of sequences.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/cli/terminal.h"
#include "apps/lra/classification.h"
#include "apps/tasks/tasks.h"
#include "datasets/batch.h"
#include "datasets/files.h"
#include "engine/check.h"
#include "engine/text.h"
#include "ops/losses.h"

namespace runnel {

Settings ClassificationSettings::list() {
  const Settings own{
      {"projection", &projection, in_range(0, 65536),
       "width of queries, keys and values, shared by the heads; 0: that of the model"},
      {"validation", &validation, in_range(0, 1e9),
       "validation samples that choose the best checkpoint, drawn once; 0: all", OldFiles::have_it, true}};
  return extended(extended(ModelSettings::list(), own), data_settings());
}

Settings ClassificationSettings::data_settings() {
  Settings all{{"length", &length, in_range(1, 1 << 20), "longest sequence; what is longer is cut there"},
               {"data", &data, {}, dataset->data_help, OldFiles::have_it, true}};
  if (dataset->side)
    all.push_back({"mask-zero",
                   &mask_zero,
                   {},
                   "leave black pixels out as if they were padding, as Long Range Arena does; the others keep their "
                   "positions"});
  if (!dataset->difficulties.empty())
    all = extended(all, {{"difficulty", &difficulty, one_of(dataset->difficulties), "of the generated samples"},
                         {"generated", &generated, in_range(100, 1e7),
                          "samples to generate: 80% for training, 10% for validation, 10% for the test"}});
  return all;
}

ClassifierConfig ClassificationSettings::model_for(int64_t classes) const {
  const int64_t heads = model.encoder.heads, projected = projection ? projection : width;
  check<UsageError>(projected % heads == 0, "--heads ", heads, " does not divide ",
                    projection ? "--projection " : "--width ", projected);
  check<UsageError>(model.positions != "sinusoidal" || width % 2 == 0, "--width ", width,
                    " is odd; sinusoidal positions are pairs of sine and cosine");
  ClassifierConfig config = model;
  config.encoder.input_width = width;
  config.vocabulary = dataset->vocabulary;
  config.classes = classes;
  config.max_length = length;
  config.pairs = dataset->pairs;
  return with_encoder(std::move(config), projected);
}

namespace {

// With a frame around it.
Picture framed(const Picture& inner, const std::array<uint8_t, 3>& colour) {
  constexpr int64_t frame = 2;
  Picture outer{inner.height + 2 * frame, inner.width + 2 * frame, {}};
  for (int64_t i = 0; i < outer.height * outer.width; ++i)
    outer.rgb.insert(outer.rgb.end(), colour.begin(), colour.end());
  for (int64_t y = 0; y < inner.height; ++y)
    std::copy_n(inner.rgb.begin() + y * inner.width * 3, inner.width * 3,
                outer.rgb.begin() + ((y + frame) * outer.width + frame) * 3);
  return outer;
}

class ClassificationTraining : public Task {
 public:
  ClassificationTraining(const ClassificationSettings& settings, const ClassificationData& data)
      : settings_(settings),
        data_(data),
        checksum_(checksum(data.train)),
        order_(sample_lengths(data_.train, settings.view()), settings.batch, key_for(settings.seed, Purpose::training)),
        model_(settings.model_for(std::ssize(data_.train.class_names)), key_for(settings.seed, Purpose::initialisation),
               settings.chosen_device()) {}

  std::string name() const override { return settings_.dataset->name; }
  Parameters parameters() const override { return model_.parameters(); }
  nlohmann::json model() const override { return model_json(model_.config); }
  nlohmann::json data() const override { return {{"class_names", data_.train.class_names}, {"checksum", checksum_}}; }
  int64_t epoch() const override { return data_.train.count(); }
  std::vector<Metric> metrics() const override {
    return {{"accuracy", Unit::percent, true}, {"validation", Unit::nats}};
  }

  Slice slice(int64_t first, int64_t count) const override {
    std::vector<int64_t> samples;
    for (int64_t n = first; n < first + count; ++n) samples.push_back(order_(n));
    TokenBatch batch = token_batch(data_.train, samples, settings_.view());
    const Indices labels = batch.labels;
    int64_t tokens = 0;
    for (const int32_t length : batch.lengths.to_vector()) tokens += length;
    const SequenceClassifier::Input in = classifier_input(model_, std::move(batch));
    return {{in.tokens, in.positions, in.lengths, labels}, {}, static_cast<double>(count), tokens};
  }
  Tensor loss(const Slice& batch, std::optional<Key> key) const override {
    return cross_entropy(model_({batch.indices[0], batch.indices[1], batch.indices[2]}, key), batch.indices[3]);
  }
  std::vector<double> validate(const WorkDone& report) const override {
    const std::vector<int64_t> samples = some_samples(data_.validation, settings_.validation);
    const int64_t part = settings_.sequences_at_a_time();
    const Score result = score(runnel::predict(model_, data_.validation, samples, settings_.view(), part, report),
                               data_.validation, samples);
    return {result.accuracy, result.loss};
  }
  // Some validation samples; the frame is green where the model chooses their class, else red.
  std::vector<Picture> preview(const WorkDone& report) const override {
    const int64_t side = settings_.dataset->side;
    if (!side) return {};
    std::vector<Picture> pictures;
    const std::vector<int64_t> samples = some_samples(data_.validation, shown);
    const Predictions found = runnel::predict(model_, data_.validation, samples, settings_.view(), shown, report);
    for (size_t i = 0; i < samples.size(); ++i) {
      const Picture inner = picture(data_.validation.sequence(samples[i]), side, side, 1);
      const bool right = found.chosen(static_cast<int64_t>(i)) == label(samples[i]);
      pictures.push_back(
          framed(inner, right ? std::array<uint8_t, 3>{64, 192, 64} : std::array<uint8_t, 3>{224, 48, 48}));
    }
    return pictures;
  }
  std::string preview_text(const WorkDone& report) const override {
    const auto text = settings_.dataset->text;
    if (!text) return "";
    const LabelledSequences& set = data_.validation;
    const std::vector<int64_t> samples = some_samples(set, shown);
    const Predictions found = runnel::predict(model_, set, samples, settings_.view(), shown, report);
    std::string lines;
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto name = [&](int64_t c) { return runnel::shown(set.class_names[static_cast<size_t>(c)]); };
      lines +=
          fmt::format("predicted {}, truth {}\n", name(found.chosen(static_cast<int64_t>(i))), name(label(samples[i])));
      for (int64_t s = 0; s < set.per_sample; ++s) {
        const auto sequence = set.sequence(samples[i] * set.per_sample + s);
        const bool is_long = sequence.size() > 80;
        lines += "  " + text(is_long ? sequence.first(80) : sequence) + (is_long ? " ...\n" : "\n");
      }
    }
    return lines;
  }

 private:
  static constexpr int64_t shown = 16;  // in a preview

  int64_t label(int64_t sample) const { return data_.validation.labels[static_cast<size_t>(sample)]; }

  const ClassificationSettings& settings_;
  const ClassificationData& data_;
  const uint32_t checksum_;
  mutable LengthBuckets order_;
  const SequenceClassifier model_;
};

}  // namespace

ClassificationData load_data(ClassificationSettings& s) {
  const bool is_folder = !s.data.empty() || !s.dataset->is_generated;
  if (is_folder)  // absolute: found from any folder
    s.data = std::filesystem::absolute(data_directory(s.data)).lexically_normal().string();
  check<UsageError>(is_utf8(s.data), "the path of the data is not valid UTF-8, as config.json must be: ", s.data);
  return s.dataset->load(s, Progress(s.dataset->is_generated ? "generated" : "read"));
}

int train_classification(ClassificationSettings& s, const ClassificationData& data) {
  say(fmt::format("data: {}, {} samples in {} classes; {} for validation\n", data.train.name, data.train.count(),
                  data.train.class_names.size(), data.validation.count()));
  return train(ClassificationTraining(s, data), s, config_json(s));
}

namespace {

// Long Range Arena's configurations: lra_benchmarks/<task>/configs, where a system's own differs from the base.
struct PaperModel {
  std::string task, attention;  // "": every other
  int64_t width, heads, layers, projection, feed_forward;
  std::string pool;
};
const std::vector<PaperModel>& paper_models() {
  static const std::vector<PaperModel> models{// A class token would see the first of several separate blocks only.
                                              {"listops", "local", 512, 8, 4, 512, 1024, "mean"},
                                              {"listops", "sinkhorn", 512, 8, 4, 512, 1024, "mean"},
                                              {"listops", "", 512, 8, 4, 512, 1024, "cls"},
                                              {"text", "local", 256, 4, 4, 256, 1024, "mean"},
                                              {"text", "sinkhorn", 256, 4, 4, 256, 1024, "mean"},
                                              {"text", "", 256, 4, 4, 256, 1024, "cls"},
                                              {"retrieval", "local", 128, 4, 4, 128, 512, "mean"},
                                              {"retrieval", "sinkhorn", 128, 4, 4, 128, 512, "mean"},
                                              {"retrieval", "", 128, 4, 4, 128, 512, "cls"},
                                              {"image", "local", 128, 2, 1, 64, 128, "mean"},
                                              {"image", "longformer", 128, 4, 4, 64, 128, "mean"},
                                              {"image", "lsh", 64, 8, 4, 32, 64, "cls"},
                                              {"image", "sinkhorn", 32, 1, 1, 32, 64, "mean"},
                                              {"image", "bigbird", 128, 1, 1, 64, 128, "cls"},
                                              {"image", "", 128, 8, 1, 64, 128, "cls"},
                                              {"pathfinder", "linear", 128, 2, 1, 64, 128, "mean"},
                                              {"pathfinder", "linformer", 32, 2, 1, 16, 32, "mean"},
                                              {"pathfinder", "performer", 32, 8, 4, 16, 32, "mean"},
                                              {"pathfinder", "bigbird", 64, 2, 4, 32, 64, "mean"},
                                              {"pathfinder", "local", 64, 4, 2, 32, 64, "mean"},
                                              {"pathfinder", "longformer", 32, 2, 2, 16, 32, "mean"},
                                              {"pathfinder", "lsh", 64, 8, 2, 32, 64, "mean"},
                                              {"pathfinder", "sinkhorn", 32, 4, 2, 16, 64, "mean"},
                                              {"pathfinder", "sparse", 32, 8, 1, 16, 32, "mean"},
                                              {"pathfinder", "synthesizer", 64, 4, 2, 32, 64, "mean"},
                                              {"pathfinder", "", 32, 4, 4, 16, 32, "mean"}};
  return models;
}

}  // namespace

void ClassificationSettings::adapt_preset() {
  if (preset != "paper") return;
  const std::string& kind = model.encoder.attention.kind;
  const auto found = std::find_if(paper_models().begin(), paper_models().end(), [&](const PaperModel& m) {
    return m.task == dataset->name && (m.attention == kind || m.attention.empty());
  });
  width = found->width;
  projection = found->projection == found->width ? 0 : found->projection;
  model.encoder.heads = found->heads;
  model.encoder.layers = found->layers;
  model.encoder.feed_forward = found->feed_forward;
  model.pool = found->pool;
  // These ignore masks in the original.
  mask_zero = dataset->side > 0 && kind != "linear" && kind != "performer" && kind != "linformer" && kind != "lsh";
}

namespace {

ClassificationSettings paper_preset(const ClassificationDataset& dataset) {
  const std::string& task = dataset.name;
  const bool is_picture = dataset.side > 0;
  ClassificationSettings paper;
  paper.dataset = &dataset;
  paper.adapt_preset();
  paper.optimizer = "adamw";
  paper.beta2 = 0.98;
  paper.adam_eps = 1e-9;
  paper.clip = 0;
  paper.log_every = 50;
  paper.evaluate_every = paper.save_every = 500;
  paper.length = task == "listops" ? 2000 : task == "text" ? 1000 : task == "retrieval" ? 4000 : 1024;
  if (!is_picture) {  // lr: the peak of .05 min(1, s/w) / sqrt(max(s, w))
    paper.batch = 32;
    paper.steps = task == "text" ? 20000 : 5000;
    paper.schedule = "rsqrt";
    paper.warmup = task == "listops" ? 1000 : 8000;
    paper.lr = task == "listops" ? 1.6e-3 : 5.6e-4;
    paper.weight_decay = 0.1;
    paper.model.positions = "sinusoidal";
  } else {
    const bool image = task == "image";
    paper.batch = image ? 256 : 512;
    paper.steps = image ? 35000 : 62400;
    paper.schedule = "cosine";
    paper.warmup = image ? 175 : 312;  // an epoch
    paper.lr = image ? 5e-4 : 1e-3;
    paper.weight_decay = 0;
    paper.model.encoder.dropout = image ? 0.3 : 0.2;
    paper.model.positions = image ? "learned" : "sinusoidal";
    paper.set_attention("attention-dropout", image ? 0.2 : 0.0);
  }
  return paper;
}

ClassificationSettings small_preset(const ClassificationDataset& dataset) {
  const std::string& task = dataset.name;
  ClassificationSettings small = paper_preset(dataset);
  small.preset = "small";
  small.width = 64;
  small.projection = 0;
  small.model.encoder.heads = 2;
  small.model.encoder.layers = 2;
  small.model.encoder.feed_forward = small.model.head_width = 128;
  small.model.encoder.dropout = 0.1;
  small.set_attention("attention-dropout", 0.1);
  small.model.pool = "mean";
  small.model.positions = "learned";
  small.beta2 = 0.999;
  small.adam_eps = 1e-6;
  small.weight_decay = 0;
  small.global_clip = 1;
  small.mask_zero = dataset.side > 0;
  small.evaluate_every = small.save_every = 1000;
  small.schedule = "one-cycle";
  small.lr = task == "pathfinder" || task == "retrieval" ? 2e-4 : 1e-4;
  if (task == "listops") {  // with 1e-4, or elu + 1, 5,000 updates do not suffice: docs/notes/2026-11-25-listops.md
    small.lr = 1e-3;
    small.set_attention("feature-map", "relu");
  }
  if (task == "pathfinder") small.batch = 256;
  if (task == "retrieval") small.steps = 30000;
  if (task == "text") small.warmup = 80, small.length = 4000;
  if (task == "retrieval") small.warmup = 800;
  return small;
}

// A few minutes on two cores.
ClassificationSettings tiny_preset(const ClassificationDataset& dataset) {
  ClassificationSettings tiny = small_preset(dataset);
  tiny.preset = "tiny";
  tiny.model.encoder.dropout = 0;
  tiny.set_attention("attention-dropout", 0.0);
  tiny.lr = 2e-3;
  tiny.batch = 32;
  tiny.steps = 500;
  tiny.warmup = 50;
  tiny.validation = 500;
  tiny.log_every = 20;
  tiny.evaluate_every = tiny.save_every = 200;
  if (dataset.vocabulary == 257 && !dataset.side) tiny.length = 1000;  // an expression that is cut has no value
  tiny.generated = 20000;
  return tiny;
}

}  // namespace

std::vector<ClassificationSettings> classification_presets(const ClassificationDataset& dataset) {
  return {paper_preset(dataset), small_preset(dataset), tiny_preset(dataset)};
}

void add_classification_tasks(Subcommand program, Command& chosen) {
  for (const ClassificationDataset* dataset : classification_datasets) {
    program.add(dataset->name, dataset->help, [dataset, &chosen](Subcommand task) {
      add_training<ClassificationSettings>(
          task, chosen, "train a classifier", [dataset] { return classification_presets(*dataset); },
          [](ClassificationSettings& settings) {
            settings.model_for(2);  // wrong flags are refused before data is read
            const ClassificationData data = load_data(settings);
            return train_classification(settings, data);
          });
      add_classification_evaluate(task, chosen, *dataset);
      add_classification_predict(task, chosen, *dataset);
    });
  }
}

}  // namespace runnel
