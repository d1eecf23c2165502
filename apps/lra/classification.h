// The tasks that classify sequences: a data set and its flags, how a trained model is opened, and the
// commands train, evaluate and predict. The tasks, the presets and their sources: Long Range Arena (Tay et al. 2021).
#pragma once
#include <cmath>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/trained_model.h"
#include "apps/training/model_settings.h"
#include "apps/training/task.h"
#include "datasets/lra/labelled.h"
#include "models/lra/classifier.h"

namespace runnel {

struct BenchKernel;  // apps/bench/kernels.h

struct ClassificationDataset;

struct Probe {
  std::string name;
  double accuracy;  // in per cent
};

struct ClassificationSettings : ModelSettings<ClassifierConfig> {
  const ClassificationDataset* dataset = nullptr;
  int64_t length = 1024;
  int64_t projection = 0;
  int64_t validation = 2000;
  bool mask_zero = false;           // of pictures
  std::string difficulty = "hard";  // of generated data
  int64_t generated = 200000;       // samples
  std::string data;

  Settings list() override;
  Settings data_settings();  // those on which the model's input depends
  ClassifierConfig model_for(int64_t classes) const;
  SequenceView view() const { return {length, mask_zero}; }
};

// A data set and the name of its subcommand.
struct ClassificationDataset {
  std::string name, help;
  std::string data_help;      // of --data
  int64_t vocabulary;         // tokens: 1 + the largest byte + 1, since 0 is padding
  bool pairs = false;         // whether a sample is two sequences
  int64_t side = 0;           // of pictures; 0: these are texts
  bool is_generated = false;  // unless --data names a folder
  Choices difficulties = {};  // of generated data that has them; then --generated says how many samples
  ClassificationData (*load)(const ClassificationSettings& settings, const WorkDone& report);
  // An input of `predict`, as the bytes of one sequence or two. Throws Error that says what is wrong with it.
  std::vector<std::vector<uint8_t>> (*parse)(const std::string& text) = nullptr;  // null for pictures
  bool whole_files = false;  // `predict` takes a file as one text, not each of its lines
  std::string (*text)(std::span<const uint8_t> sequence) = nullptr;  // to print one; null for pictures
  // Accuracies on the test set, in per cent, that are reached without reading the sequences as a whole.
  std::vector<Probe> (*probes)(const ClassificationSettings& settings, const ClassificationData& data) = nullptr;
};

// The tasks: each is a file in apps/lra/, and a line here.
namespace tasks {
extern const ClassificationDataset listops, pathfinder, image, text, retrieval;
}
inline constexpr const ClassificationDataset* classification_datasets[] = {
    &tasks::listops, &tasks::pathfinder, &tasks::image, &tasks::text, &tasks::retrieval};

// paper: Long Range Arena's model and training; small: the two-layer setting of Nystromformer and Skyformer; tiny: a
// few minutes on two cores.
ClassificationSettings classification_preset(const ClassificationDataset& dataset, const std::string& name);
// Chooses a kind of attention, with the preset's settings for it.
void set_attention(ClassificationSettings& settings, const std::string& kind);
// Finds --data and reads or generates it.
ClassificationData load_data(ClassificationSettings& settings);
int train_classification(ClassificationSettings& settings, const ClassificationData& data);

void add_classification_evaluate(Subcommand task, const ClassificationDataset& dataset);
void add_classification_predict(Subcommand task, const ClassificationDataset& dataset);

// --- shared by the commands ---

// Of these samples as the model reads them: with pool cls, each sequence begins with a token of its own.
TokenBatch batch_for(const SequenceClassifier& model, const LabelledSequences& set, std::span<const int64_t> samples,
                     SequenceView view);

struct Predictions {
  std::vector<float> log_probabilities;  // [samples,classes]
  int64_t classes;

  int64_t chosen(int64_t sample) const;
  double log_of(int64_t sample, int64_t c) const {
    return log_probabilities[static_cast<size_t>(sample * classes + c)];
  }
  double of(int64_t sample, int64_t c) const { return std::exp(log_of(sample, c)); }
};
// Of samples of the set, in the order given; `batch` at a time, those of similar length together.
Predictions predict(const SequenceClassifier& model, const LabelledSequences& set, const std::vector<int64_t>& samples,
                    SequenceView view, int64_t batch, const WorkDone& report);

struct Score {
  double accuracy;                 // in per cent
  double loss;                     // mean, in nats
  std::vector<int64_t> confusion;  // [classes,classes]: samples of class (row) that were put into class (column)
};
Score score(const Predictions& predictions, const LabelledSequences& set, const std::vector<int64_t>& samples);

// The package's commands, benchmarks and kernels.
void add_classification_tasks(Subcommand program);
void add_lra(Subcommand bench);
void add_lra_speed(Subcommand bench);
std::vector<BenchKernel> lra_kernels(Device device);

// Some samples of a set, always the same; all if `most` is 0.
std::vector<int64_t> some_samples(const LabelledSequences& set, int64_t most);

// A trained model and the settings that it was trained with.
struct LoadedClassifier {
  Checkpoint checkpoint;
  SequenceClassifier model;
  ClassificationSettings settings;
  std::vector<std::string> class_names;

  LoadedClassifier(const std::string& path, const ClassificationDataset& dataset, const RuntimeOptions& options);
};

}  // namespace runnel
