// --dry-run: the memory and time that a training run would take.
#pragma once
#include "apps/training/settings.h"
#include "apps/training/task.h"

namespace runnel {

// Prints memory and time of a run with these settings, of one of processes(); writes nothing.
void dry_run(const Task& task, const TrainSettings& settings);

}  // namespace runnel
