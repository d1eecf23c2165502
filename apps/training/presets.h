// Presets of `train`: each is a command line.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "models/settings.h"

namespace runnel {

struct Preset {
  std::string name;
  std::string flags;      // "--width 64 --augment"
  std::string base = {};  // the preset whose flags come before these; "": the defaults
  // More flags, for each value of the setting `depends_on`; "": for any other value.
  std::string depends_on = {};
  std::vector<std::pair<std::string, std::string>> cases = {};
};
using Presets = std::vector<Preset>;

// Applies the preset of this name.
void set_preset(const Settings& settings, const Presets& presets, const std::string& name);
// Of these flags only those that depend on a setting, once that has been given.
void set_preset_cases(const Settings& settings, const Presets& presets, const std::string& name);
// The presets as --help shows them.
std::string preset_text(const Presets& presets);

// S derives from TrainSettings.
template <class S>
S with_preset(S settings, const Presets& presets, const std::string& name) {
  settings.preset = name;
  set_preset(settings.list(), presets, name);
  return settings;
}

}  // namespace runnel
