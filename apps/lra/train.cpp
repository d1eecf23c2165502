// The training of a classifier of sequences.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "apps/cli/terminal.h"
#include "apps/lra/classification.h"
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

class ClassificationTraining : public TaskOf<TokenBatch> {
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
    const TokenBatch batch = batch_for(model_, data_.train, samples, settings_.view());
    int64_t tokens = model_.config.pool == "cls" ? -batch.lengths.size() : 0;  // the model's own are not counted
    for (const int32_t length : batch.lengths.to_vector()) tokens += length;
    return slice_of(batch, static_cast<double>(count), tokens);
  }
  Tensor loss(const TokenBatch& batch, std::optional<Key> key) const override {
    return cross_entropy(model_({batch.tokens, batch.positions, batch.lengths}, key), batch.labels);
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
  if (is_folder) s.data = data_for_config(s.data);
  return s.dataset->load(s, Progress(s.dataset->is_generated ? "generated" : "read"));
}

int train_classification(ClassificationSettings& s, const ClassificationData& data) {
  say(fmt::format("data: {}, {} samples in {} classes; {} for validation\n", data.train.name, data.train.count(),
                  data.train.class_names.size(), data.validation.count()));
  return train(ClassificationTraining(s, data), s, config_json(s));
}

namespace {

// Long Range Arena's configurations, lra_benchmarks/<task>/configs: the sizes of the kinds of attention that have their
// own, and of all others. A class token would see the first of several separate blocks only; those that leave out black
// pixels ignore masks in the original.
const std::map<std::string, std::vector<std::pair<std::string, std::string>>>& paper_sizes() {
  static const std::map<std::string, std::vector<std::pair<std::string, std::string>>> sizes{
      {"listops",
       {{"local", "--width 512 --heads 8 --layers 4 --projection 0 --feed-forward 1024 --pool mean"},
        {"sinkhorn", "--width 512 --heads 8 --layers 4 --projection 0 --feed-forward 1024 --pool mean"},
        {"", "--width 512 --heads 8 --layers 4 --projection 0 --feed-forward 1024 --pool cls"}}},
      {"text",
       {{"local", "--width 256 --heads 4 --layers 4 --projection 0 --feed-forward 1024 --pool mean"},
        {"sinkhorn", "--width 256 --heads 4 --layers 4 --projection 0 --feed-forward 1024 --pool mean"},
        {"", "--width 256 --heads 4 --layers 4 --projection 0 --feed-forward 1024 --pool cls"}}},
      {"retrieval",
       {{"local", "--width 128 --heads 4 --layers 4 --projection 0 --feed-forward 512 --pool mean"},
        {"sinkhorn", "--width 128 --heads 4 --layers 4 --projection 0 --feed-forward 512 --pool mean"},
        {"", "--width 128 --heads 4 --layers 4 --projection 0 --feed-forward 512 --pool cls"}}},
      {"image",
       {{"local", "--width 128 --heads 2 --layers 1 --projection 64 --feed-forward 128 --pool mean --mask-zero"},
        {"longformer", "--width 128 --heads 4 --layers 4 --projection 64 --feed-forward 128 --pool mean --mask-zero"},
        {"lsh", "--width 64 --heads 8 --layers 4 --projection 32 --feed-forward 64 --pool cls"},
        {"sinkhorn", "--width 32 --heads 1 --layers 1 --projection 0 --feed-forward 64 --pool mean --mask-zero"},
        {"bigbird", "--width 128 --heads 1 --layers 1 --projection 64 --feed-forward 128 --pool cls --mask-zero"},
        {"linear", "--width 128 --heads 8 --layers 1 --projection 64 --feed-forward 128 --pool cls"},
        {"performer", "--width 128 --heads 8 --layers 1 --projection 64 --feed-forward 128 --pool cls"},
        {"linformer", "--width 128 --heads 8 --layers 1 --projection 64 --feed-forward 128 --pool cls"},
        {"", "--width 128 --heads 8 --layers 1 --projection 64 --feed-forward 128 --pool cls --mask-zero"}}},
      {"pathfinder",
       {{"linear", "--width 128 --heads 2 --layers 1 --projection 64 --feed-forward 128 --pool mean"},
        {"linformer", "--width 32 --heads 2 --layers 1 --projection 16 --feed-forward 32 --pool mean"},
        {"performer", "--width 32 --heads 8 --layers 4 --projection 16 --feed-forward 32 --pool mean"},
        {"bigbird", "--width 64 --heads 2 --layers 4 --projection 32 --feed-forward 64 --pool mean --mask-zero"},
        {"local", "--width 64 --heads 4 --layers 2 --projection 32 --feed-forward 64 --pool mean --mask-zero"},
        {"longformer", "--width 32 --heads 2 --layers 2 --projection 16 --feed-forward 32 --pool mean --mask-zero"},
        {"lsh", "--width 64 --heads 8 --layers 2 --projection 32 --feed-forward 64 --pool mean"},
        {"sinkhorn", "--width 32 --heads 4 --layers 2 --projection 16 --feed-forward 64 --pool mean --mask-zero"},
        {"sparse", "--width 32 --heads 8 --layers 1 --projection 16 --feed-forward 32 --pool mean --mask-zero"},
        {"synthesizer", "--width 64 --heads 4 --layers 2 --projection 32 --feed-forward 64 --pool mean --mask-zero"},
        {"", "--width 32 --heads 4 --layers 4 --projection 16 --feed-forward 32 --pool mean --mask-zero"}}}};
  return sizes;
}

// Training in the paper: the learning rate of texts is the peak of .05 min(1, s/w) / sqrt(max(s, w)); the warm-up of
// pictures is an epoch. small, of listops: with 1e-4, or elu + 1, 5,000 updates do not suffice
// (docs/notes/2026-11-25-listops.md). tiny: a few minutes on two cores; an expression that is cut has no value.
struct TrainingFlags {
  std::string paper, small, tiny;
};
const std::map<std::string, TrainingFlags>& training_flags() {
  static const std::string text = "--batch 32 --schedule rsqrt --weight-decay 0.1 --positions sinusoidal ";
  static const std::map<std::string, TrainingFlags> flags{
      {"listops", {text + "--length 2000 --steps 5000 --warmup 1000 --lr 1.6e-3", "--lr 1e-3 --feature-map relu", ""}},
      {"text",
       {text + "--length 1000 --steps 20000 --warmup 8000 --lr 5.6e-4", "--lr 1e-4 --warmup 80 --length 4000",
        " --length 1000"}},
      {"retrieval",
       {text + "--length 4000 --steps 5000 --warmup 8000 --lr 5.6e-4", "--lr 2e-4 --steps 30000 --warmup 800",
        " --length 1000"}},
      {"image",
       {"--length 1024 --batch 256 --steps 35000 --schedule cosine --warmup 175 --lr 5e-4 --weight-decay 0 --dropout "
        "0.3 "
        "--attention-dropout 0.2 --positions learned",
        "--lr 1e-4 --mask-zero", ""}},
      {"pathfinder",
       {"--length 1024 --batch 512 --steps 62400 --schedule cosine --warmup 312 --lr 1e-3 --weight-decay 0 --dropout "
        "0.2 "
        "--attention-dropout 0 --positions sinusoidal",
        "--lr 2e-4 --batch 256 --mask-zero", " --generated 20000"}}};
  return flags;
}

Presets presets_of(const ClassificationDataset& dataset) {
  const TrainingFlags& own = training_flags().at(dataset.name);
  return {
      {.name = "paper",
       .flags = "--optimizer adamw --beta2 0.98 --adam-eps 1e-9 --clip 0 --log-every 50 --evaluate-every 500 "
                "--save-every 500 " +
                own.paper,
       .depends_on = "attention",
       .cases = paper_sizes().at(dataset.name)},
      {"small",
       "--width 64 --projection 0 --heads 2 --layers 2 --feed-forward 128 --head-width 128 --dropout 0.1 "
       "--attention-dropout 0.1 --pool mean --positions learned --beta2 0.999 --adam-eps 1e-6 --weight-decay 0 "
       "--global-clip 1 --schedule one-cycle --evaluate-every 1000 --save-every 1000 " +
           own.small,
       "paper"},
      {"tiny",
       "--dropout 0 --attention-dropout 0 --lr 2e-3 --batch 32 --steps 500 --warmup 50 --validation 500 --log-every 20 "
       "--evaluate-every 200 --save-every 200" +
           own.tiny,
       "small"}};
}

ClassificationSettings defaults_of(const ClassificationDataset& dataset) {
  ClassificationSettings defaults;
  defaults.dataset = &dataset;
  return defaults;
}

}  // namespace

ClassificationSettings classification_preset(const ClassificationDataset& dataset, const std::string& name) {
  return with_preset(defaults_of(dataset), presets_of(dataset), name);
}

void set_attention(ClassificationSettings& settings, const std::string& kind) {
  settings.model.encoder.attention.kind = kind;
  set_preset_cases(settings.list(), presets_of(*settings.dataset), settings.preset);
}

void add_classification_tasks(Subcommand program) {
  program.add("lra", "Long Range Arena: sequences of bytes that are put into classes", [](Subcommand arena) {
    for (const ClassificationDataset* dataset : classification_datasets)
      arena.add(dataset->name, dataset->help, [dataset](Subcommand task) {
        add_training<ClassificationSettings>(task, "train a classifier", defaults_of(*dataset), presets_of(*dataset),
                                             [](ClassificationSettings& settings) {
                                               settings.model_for(2);  // wrong flags are refused before data is read
                                               const ClassificationData data = load_data(settings);
                                               return train_classification(settings, data);
                                             });
        add_classification_evaluate(task, *dataset);
        add_classification_predict(task, *dataset);
      });
  });
}

}  // namespace runnel
