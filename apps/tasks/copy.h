// The copy task's training, which `bench convergence` runs with each kind of attention.
#pragma once
#include <vector>

#include "apps/training/model_settings.h"

namespace runnel {

struct CopySettings : TransformerSettings {
  int64_t length = 128;

  Settings list() override;
};
std::vector<CopySettings> copy_presets();
int train_copy(CopySettings& settings);

}  // namespace runnel
