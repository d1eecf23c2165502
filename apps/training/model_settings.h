// The settings of a training run of a model with a transformer.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "apps/training/settings.h"
#include "engine/host.h"
#include "models/attention_kinds.h"
#include "models/config_settings.h"

namespace runnel {

// Settings of tasks with a transformer: its configuration, of which settings with help become flags, the
// attention's own settings, and these, from which head_dim follows.
template <class Config>
struct ModelSettings : TrainSettings {
  int64_t width = 256;  // D, shared by the heads
  bool recompute = false;
  Config model;

  Settings list() override;
  void adapt_to(const nlohmann::json& config) override;

 protected:
  // Throws UsageError that names the flag that cannot be, and Error if the memory cannot hold such a model and its
  // training.
  Config with_encoder(Config config, int64_t projected_width) const;
};

struct TransformerSettings : ModelSettings<AutoregressiveConfig> {
  void adapt_to(const nlohmann::json& config) override;
  // The model of these settings. Throws as with_encoder.
  AutoregressiveConfig model_for(int64_t vocabulary, int64_t outputs, int64_t max_length) const;
};

template <class Config>
Settings settings_of(Config& config) {
  return list(config);  // of the core or of the package that has the model
}

template <class Config>
Settings ModelSettings<Config>::list() {
  Settings all = TrainSettings::list();
  all.push_back({"width", &width, in_range(2, 65536), "model width D, shared by the heads"});
  all.push_back({"recompute",
                 &recompute,
                 {},
                 "activation checkpointing: keep only the layers' inputs and compute the rest again in the backward "
                 "pass, for less memory and the same numbers",
                 OldFiles::may_lack_it,
                 true});
  Choices kinds;  // that --attention can choose
  for (Setting setting : settings_of(model)) {
    if (setting.help.empty()) continue;
    if (setting.name == "attention") kinds = setting.allowed.choices();
    std::replace(setting.name.begin(), setting.name.end(), '_', '-');  // feed_forward -> feed-forward
    all.push_back(setting);
  }
  return extended(all, all_attention_settings(model.encoder.attention, kinds));
}

template <class Config>
void ModelSettings<Config>::adapt_to(const nlohmann::json& config) {
  TrainSettings::adapt_to(config);
  for (const AttentionKind* kind : attention_kinds())
    for (const AttentionKind::Option& option : kind->options)
      if (!config.contains(option.name))
        model.encoder.attention.values[option.name] = option.value;  // not the preset's
}

template <class Config>
Config ModelSettings<Config>::with_encoder(Config config, int64_t projected_width) const {
  config.encoder.head_dim = projected_width / config.encoder.heads;
  config.encoder.recompute = recompute;
  config.encoder.attention.values = attention_values(config.encoder.attention);
  const double bytes = 3 * 4 * parameter_lower_bound(config), free = static_cast<double>(free_memory(chosen_device()));
  check(bytes < free, "a model of --layers ", config.encoder.layers, ", --width ", width, " and --feed-forward ",
        config.encoder.feed_forward, " needs ", std::ceil(bytes / 1e9),
        " GB or more for parameters, gradients and moments; ", std::floor(free / 1e8) / 10, " GB are free");
  return config;
}

}  // namespace runnel
