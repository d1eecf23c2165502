// The configurations of the core's models as lists of settings: flags, and the description of a checkpoint's model.
#pragma once
#include "models/attention_kinds.h"
#include "models/autoregressive.h"
#include "models/settings.h"

namespace runnel {

// The chosen kind's settings, as a list over config.values, where the defaults are put in; and those of several kinds.
Settings attention_settings(AttentionConfig& config);
Settings all_attention_settings(AttentionConfig& config, const Choices& kinds);

// The attention's own settings are not among them: see attention_settings. `form`: which kinds can be chosen.
Settings list(EncoderConfig& config, Forms form = Forms::causal);
// The description of a checkpoint's model; settings with a help text become flags. Without the attention's own.
Settings list(AutoregressiveConfig& config);

}  // namespace runnel
