// From a task and its settings to updates of its model.
#include "apps/training/task.h"

#include <algorithm>

#include "apps/training/communicator.h"

namespace runnel {

Updater updater_for(const Task& task, const TrainSettings& s) {
  const AdamOptions options{.lr = s.lr,
                            .beta2 = s.beta2,
                            .eps = s.adam_eps,
                            .rectify = s.optimizer != "adamw",
                            .weight_decay = s.weight_decay,
                            .muon_decay = s.muon_decay,
                            .clip = s.clip,
                            .global_clip = s.global_clip};
  return {ShardedOptimizer(task.parameters(), options, s.optimizer == "muon", s.shard), s.chosen_device(),
          key_for(s.seed, Purpose::dropout), [&task](const Slice& slice, Key key) { return task.loss(slice, key); },
          sum_options(s.reduction, s.gradients)};
}

std::vector<Slice> own_slices(const Task& task, int64_t step, int64_t batch, int64_t part) {
  const Communicator& all = processes();
  const int64_t own = (batch + part - 1) / part / all.size() * part;  // sequences, unless the last part is smaller
  const int64_t begin = all.rank() * own, end = all.size() == 1 ? batch : begin + own;
  std::vector<Slice> slices;
  for (int64_t first = begin; first < end; first += part)
    slices.push_back(task.slice(step * batch + first, std::min(part, end - first)));
  return slices;
}

}  // namespace runnel
