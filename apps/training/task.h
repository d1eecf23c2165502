// A task, as the training loop sees it: a model, the loss of a part of the training data, metrics, and previews.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/plots/pictures.h"
#include "apps/training/settings.h"
#include "apps/training/updater.h"
#include "models/parameters.h"

namespace runnel {

// How a number is printed. Losses are computed in nats; bits/dim and bits/byte are nats / ln 2.
enum class Unit { nats, bits_per_dim, bits_per_byte, percent };

struct Metric {
  std::string name;  // a column of metrics.csv; losses have two, <name> in nats and <name>_bits
  Unit unit;
  bool higher_is_better = false;
};

// Long work reports its progress by calling this. It may throw Interrupted.
using WorkDone = std::function<void(int64_t done, int64_t total)>;

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string name() const = 0;       // "copy", "mnist": stands in checkpoints
  virtual Parameters parameters() const = 0;  // of the model
  // What an update leaves to the next one, beside the model; also one whose result is not finite.
  virtual Parameters carried() const { return {}; }
  virtual nlohmann::json model() const = 0;                // the model's configuration
  virtual nlohmann::json data() const { return nullptr; }  // for checkpoints: needed to use the model
  // Sequences in the training set, for loss.png; 0: there is no end of them.
  virtual int64_t epoch() const { return 0; }
  virtual Unit loss_unit() const { return Unit::nats; }

  // Sequences first .. first + count - 1 of all that are trained on one after another: update number s, from 0, takes
  // those from s * batch on, in one slice or several. They lie on the host.
  virtual Slice slice(int64_t first, int64_t count) const = 0;
  // See SliceLoss. The slice lies where the model does; the key is empty where nothing is to be drawn. On the CPU
  // several threads may call this at once, each with another slice: it changes nothing but what carried() keeps for the
  // rows of its slice.
  virtual Tensor loss(const Slice& slice, std::optional<Key> key) const = 0;
  // The first metric chooses the best checkpoint. One is called `validation`, the loss: loss.png draws it.
  virtual std::vector<Metric> metrics() const = 0;
  // Their values on data that is not trained on, the same data every time. Says now and then how much is done.
  virtual std::vector<double> validate(const WorkDone& report) const = 0;
  // Pictures of the model's results; may be none.
  virtual std::vector<Picture> preview(const WorkDone&) const { return {}; }
  // The same as lines of text; may be empty.
  virtual std::string preview_text(const WorkDone&) const { return {}; }
};

// A task whose batches are of one type (apps/training/updater.h).
template <class Batch>
class TaskOf : public Task {
 public:
  virtual Tensor loss(const Batch& batch, std::optional<Key> key) const = 0;
  Tensor loss(const Slice& slice, std::optional<Key> key) const final { return loss(batch_of<Batch>(slice), key); }
};

// Updates the parameters of the task's model, with the optimizer of the settings.
Updater updater_for(const Task& task, const TrainSettings& settings);
// This process's slices, of `part` sequences each, of update number `step`, from 0, of `batch` sequences.
std::vector<Slice> own_slices(const Task& task, int64_t step, int64_t batch, int64_t part);

// Trains until --steps or --minutes, or until SIGINT, SIGTERM or SIGHUP: then saves and returns 130, else 0. With
// --dry-run prints the run's memory and time. `config` is that of config_json().
int train(const Task& task, const TrainSettings& settings, const nlohmann::json& config);

}  // namespace runnel
