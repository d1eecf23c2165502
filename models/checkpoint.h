// Checkpoints: a safetensors file with a model's parameters, what is needed to build the model again, and, in those
// that a run continues from, the optimizer's moments. docs/run-folder.md lists its contents.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "models/autoregressive.h"
#include "models/classifier.h"
#include "models/safetensors.h"
#include "models/transcriber.h"

namespace runnel {

struct Checkpoint {
  std::filesystem::path path;
  SafeTensors content;
  std::string task;       // that trained it: "copy", "mnist"
  nlohmann::json model;   // the model's configuration
  nlohmann::json config;  // the settings of its training
  nlohmann::json data;    // what else the task keeps to use the model
  nlohmann::json state;   // where the run stands; "step" is the number of updates made

  int64_t step() const { return state.at("step"); }
};

void save_checkpoint(const Checkpoint& checkpoint);  // atomic
// Throws Error if what a checkpoint says beside its tensors could not be saved: a text in it is not UTF-8.
void check_saveable(const Checkpoint& checkpoint);

// From a run folder (its best checkpoint, else its last) or a .safetensors file. Throws Error that names the file if it
// is missing, damaged, or of another task than `task` (empty: any).
Checkpoint read_checkpoint(const std::filesystem::path& path, const std::string& task = "");

// Throws Error that names the first class in which data differ from what the model of a checkpoint learned: labels are
// numbers. Data without the last classes are no problem, data without any are.
void check_classes(const std::filesystem::path& checkpoint, const std::vector<std::string>& learned,
                   const std::string& data, const std::vector<std::string>& classes);

nlohmann::json model_json(AutoregressiveConfig config);
nlohmann::json model_json(ClassifierConfig config);
nlohmann::json model_json(TranscriberConfig config);
// The model that the checkpoint describes, with its parameters. Throws Error that names the file if they do not agree.
AutoregressiveTransformer load_autoregressive(const Checkpoint& checkpoint, Device device = Device::cpu);
SequenceClassifier load_classifier(const Checkpoint& checkpoint, Device device = Device::cpu);
Transcriber load_transcriber(const Checkpoint& checkpoint, Device device = Device::cpu);

}  // namespace runnel
