#include "apps/training/learner.h"

#include <algorithm>
#include <vector>

#include "apps/training/communicator.h"

namespace runnel {

Learner::Learner(const Task& task, const TrainSettings& settings)
    : task_(task),
      part_(settings.sequences_at_a_time()),
      parameters_(task.parameters()),
      optimizer_(parameters_,
                 {.lr = settings.lr,
                  .beta2 = settings.beta2,
                  .eps = settings.adam_eps,
                  .rectify = settings.optimizer != "adamw",
                  .weight_decay = settings.weight_decay,
                  .muon_decay = settings.muon_decay,
                  .clip = settings.clip,
                  .global_clip = settings.global_clip},
                 settings.optimizer == "muon", settings.shard),
      updater_(
          optimizer_, settings.chosen_device(), key_for(settings.seed, Purpose::dropout),
          [&task](const Slice& slice, Key key) { return task.loss(slice, key); },
          sum_options(settings.reduction, settings.gradients)) {}

Learner::Update Learner::update(int64_t step, int64_t batch, int64_t part) {
  const Communicator& all = processes();
  const int64_t own = (batch + part - 1) / part / all.size() * part;  // sequences, unless the last part is smaller
  const int64_t begin = all.rank() * own, end = all.size() == 1 ? batch : begin + own;
  std::vector<Slice> slices;
  for (int64_t first = begin; first < end; first += part)
    slices.push_back(task_.slice(step * batch + first, std::min(part, end - first)));
  return updater_.update(step, slices);
}

}  // namespace runnel
