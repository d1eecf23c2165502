// The copy task's training, which `bench convergence` runs with each kind of attention.
#pragma once
#include <string>

#include "apps/training/model_settings.h"

namespace runnel {

struct CopySettings : TransformerSettings {
  int64_t length = 128;

  Settings list() override;
};
CopySettings copy_preset(const std::string& name);  // paper, small or tiny
int train_copy(CopySettings& settings);

}  // namespace runnel
