// The training loop that all apps share, and the run folder that it writes:
//
//   config.json  metrics.csv  loss.png  samples/step-0001000.png  last.safetensors  best.safetensors
//
// Everything random is drawn from Key{seed} by purpose and step, so a checkpoint is weights, moments and a step, and a
// resumed run ends in the same bytes as one that was left alone.
#pragma once
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/options.h"
#include "apps/pictures.h"
#include "models/transformer.h"

namespace runnel {

enum class Purpose : uint64_t { initialisation, training, validation, sampling };
inline Key key_for(uint64_t seed, Purpose purpose) { return Key{seed}.fold(static_cast<uint64_t>(purpose)); }

// What an app brings to be trained.
struct Task {
  std::string app;  // "copy", "mnist": stands in the checkpoint
  Transformer& model;
  int64_t tokens;       // per sequence, for tokens/s
  int64_t epoch;        // sequences in the training set; 0 if there is no end of them
  bool bits;            // print losses in bits per dimension, not in nats
  nlohmann::json data;  // what a user of the model has to know of the data; kept in checkpoints

  // The mean loss in nats of the sequences first .. first + count - 1 of all that are trained on one after another,
  // recorded on the tape. Update number `step`, from 0, takes those from step * batch on, in one part or several; the
  // key is the part's own, for dropout.
  std::function<Tensor(int64_t first, int64_t count, Key key)> loss;
  // How much those sequences count in the mean over an update's parts. Empty: their number.
  std::function<double(int64_t first, int64_t count)> weight = {};
  // The mean loss in nats on data that is not trained on; the same data every time.
  std::function<double()> validate;
  // Draws something to look at; may be empty.
  std::function<std::vector<Picture>()> preview;
};

std::string duration_text(double seconds);  // "12 s", "5 min", "1.5 h", "3.0 days"

// Trains until --steps or --minutes, or until SIGINT or SIGTERM: then saves and returns 130, else 0. With --dry-run
// only says what it would take. `config` is to_json of the app's settings: what config.json and each checkpoint hold.
int train(const Task& task, const Settings& settings, nlohmann::json config);

// A model to use.
struct Checkpoint {
  std::filesystem::path path;
  Transformer model;
  nlohmann::json config;  // to_json of the settings it was trained with
  nlohmann::json data;    // Task::data
  int64_t step;
};
// From a run folder (its best checkpoint, else its last) or a .safetensors file. Throws Error if it belongs to another
// app.
Checkpoint load_checkpoint(const std::filesystem::path& path, const std::string& app, Device device);

}  // namespace runnel
