// Checkpoints: a safetensors file with a model's parameters, its configuration, and, in those
// that a run continues from, the optimizer's moments. docs/run-folder.md lists its contents.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "models/autoregressive.h"
#include "models/config_settings.h"
#include "models/safetensors.h"

namespace runnel {

struct Checkpoint {
  std::filesystem::path path;
  SafeTensors content;
  std::string task;       // that trained it: "copy", "mnist"
  nlohmann::json model;   // the model's configuration
  nlohmann::json config;  // the settings of its training
  nlohmann::json data;    // of the task, such as names of classes: needed to use the model
  nlohmann::json state;   // where the run stands; "step" is the number of updates made

  int64_t step() const { return state.at("step"); }
};

void save_checkpoint(const Checkpoint& checkpoint, MatrixStorage matrices = MatrixStorage::f32);  // atomic
// Throws Error if a checkpoint's metadata could not be saved: a text in it is not UTF-8.
void check_saveable(const Checkpoint& checkpoint);

// From a run folder (its best checkpoint, else its last) or a .safetensors file. Throws Error that names the file if it
// is missing, damaged, or of another task than `task` (empty: any).
Checkpoint read_checkpoint(const std::filesystem::path& path, const std::string& task = "");

// Throws Error that names the first class in which data differ from the classes of a checkpoint's model: labels are
// numbers. Data without the last classes are no problem, data without any are.
void check_classes(const std::filesystem::path& checkpoint, const std::vector<std::string>& learned,
                   const std::string& data, const std::vector<std::string>& classes);

// For the templates below: settings, and those of the attention, as JSON, and from a checkpoint's.
nlohmann::json model_json(const Settings& settings, AttentionConfig& attention);
void read_model_config(const Checkpoint& checkpoint, const Settings& settings, AttentionConfig& attention);
// Before a damaged number makes a model of terabytes: the matrices that every kind of attention has must fit into what
// the file holds, and what the model computes beside its parameters into the memory.
void check_model_size(const Checkpoint& checkpoint, double parameters, int64_t layers, double buffer,
                      int64_t max_length);

// A configuration of a model as a checkpoint says it.
template <class Config>
nlohmann::json model_json(Config config) {
  return model_json(list(config), config.encoder.attention);
}
// The model that the checkpoint describes, with its parameters: AutoregressiveTransformer, or a package's. Throws Error
// that names the file if they do not agree.
template <class Model>
Model load_model(const Checkpoint& checkpoint, Device device = Device::cpu) {
  typename Model::Config config;
  read_model_config(checkpoint, list(config), config.encoder.attention);
  check_model_size(checkpoint, parameter_lower_bound(config), config.encoder.layers, buffer_size(config),
                   config.max_length);
  Model model(config, Key{}, device);
  restore(checkpoint.content, checkpoint.path, model.parameters());
  return model;
}

}  // namespace runnel
