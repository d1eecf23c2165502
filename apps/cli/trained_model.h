// The options of every command that uses a trained model.
#pragma once
#include <string>

#include "apps/cli/runtime.h"
#include "models/checkpoint.h"

namespace runnel {

struct ModelOptions : RuntimeOptions {
  std::string model;

  Settings list() override {
    return extended(RuntimeOptions::list(), {{"model", &model, {}, "a run folder or a .safetensors file"}});
  }
};

struct EvaluateOptions : ModelOptions {
  std::string data;
  int64_t limit = 0, batch = 32;

  Settings list() override {
    return extended(ModelOptions::list(),
                    {{"data", &data, {}, "as in train; default: what the model was trained on"},
                     {"limit", &limit, in_range(0, 1e9), "evaluate only so many of the test set; 0: all"},
                     {"batch", &batch, in_range(1, 1 << 20), "sequences at a time"},
                     json_flag()});
  }
};

// The checkpoint that --model names, of a model of this task. Throws UsageError if the flag names nothing that may be
// one, and Error that names the file if it is another task's or damaged.
Checkpoint trained_model(const std::string& model, const std::string& task);

}  // namespace runnel
