// What learns: the parameters of a task's model, their optimizer, and updates by batches that processes() share.
#pragma once
#include <cstdint>
#include <string>

#include "apps/training/settings.h"
#include "apps/training/sharded_optimizer.h"
#include "apps/training/task.h"
#include "apps/training/updater.h"
#include "models/parameters.h"

namespace runnel {

class Learner {
 public:
  Learner(const Task& task, const TrainSettings& settings);

  using Update = Updater::Result;
  // Update number `step`, from 0, with `batch` sequences, of which each process computes `part` at a time.
  Update update(int64_t step, int64_t batch, int64_t part);
  int64_t part() const { return part_; }  // what --micro-batch says
  // Where the last update, which was not finite, began to be so.
  std::string first_non_finite() { return updater_.first_non_finite(); }

  const Parameters& parameters() const { return parameters_; }
  ShardedOptimizer& optimizer() { return optimizer_; }

 private:
  const Task& task_;
  const int64_t part_;
  Parameters parameters_;
  ShardedOptimizer optimizer_;
  Updater updater_;
};

}  // namespace runnel
