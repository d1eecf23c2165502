// Associative recall, which `bench recall` trains with each kind of attention.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "apps/training/model_settings.h"

namespace runnel {

struct RecallSettings : TransformerSettings {
  int64_t length = 256, pairs = 64, vocabulary = 8192;

  Settings list() override;
  Settings task_settings();  // of these: those of the task
};
RecallSettings recall_preset(const std::string& name);  // paper, small or tiny
int train_recall(RecallSettings& settings);

struct Recalled {
  int64_t pairs, length;
  double accuracy;  // per cent
};
// How many pairs a model of these settings is asked for: 4, 8, ... up to four times as many as in training.
std::vector<int64_t> asked_pairs(const RecallSettings& settings);
// The accuracy of a run's best model for each of them, on `sequences` fresh sequences.
std::vector<Recalled> measure_recall(const std::string& model, int64_t sequences, const RuntimeOptions& options);

// Commands for plot(): a curve of the accuracy over the pairs for each model, under its title.
std::string recall_plot(const std::vector<std::pair<std::string, std::vector<Recalled>>>& curves);

}  // namespace runnel
