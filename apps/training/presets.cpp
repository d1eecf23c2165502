#include "apps/training/presets.h"

#include <algorithm>
#include <sstream>

#include "engine/check.h"
#include "models/settings_text.h"

namespace runnel {
namespace {

const Setting& setting_of(const Settings& settings, const std::string& name) {
  const auto found = std::ranges::find(settings, name, &Setting::name);
  check(found != settings.end(), "a preset sets --", name, ", which is no setting of this command");
  return *found;
}

// --name value, or --name of a switch.
void set_flags(const Settings& settings, const std::string& flags) {
  std::istringstream words(flags);
  for (std::string flag, value; words >> flag;) {
    const std::string name = flag.substr(2);
    const Setting& setting = setting_of(settings, name);
    if (bool* const* const is_on = std::get_if<bool*>(&setting.value)) {
      **is_on = true;
      continue;
    }
    words >> value;
    const std::string problem = set_value(setting, value);
    check(problem.empty(), "a preset sets ", flag, ": ", problem);
  }
}

const Preset& preset_of(const Presets& presets, const std::string& name) {
  const auto found = std::ranges::find(presets, name, &Preset::name);
  check(found != presets.end(), "there is no preset ", name);
  return *found;
}

void set_preset_flags(const Settings& settings, const Presets& presets, const std::string& name) {
  const Preset& preset = preset_of(presets, name);
  if (!preset.base.empty()) set_preset_flags(settings, presets, preset.base);
  set_flags(settings, preset.flags);
}

}  // namespace

void set_preset(const Settings& settings, const Presets& presets, const std::string& name) {
  set_preset_flags(settings, presets, name);
  set_preset_cases(settings, presets, name);
}

void set_preset_cases(const Settings& settings, const Presets& presets, const std::string& name) {
  const Preset& preset = preset_of(presets, name);
  if (preset.cases.empty()) return;
  const std::string value = text_of(setting_of(settings, preset.depends_on));
  for (const auto& [of, flags] : preset.cases)
    if (of == value || of.empty()) return set_flags(settings, flags);
}

std::string preset_text(const Presets& presets) {
  std::string text = "Presets:";
  for (const Preset& preset : presets) {
    text += "\n  " + preset.name + std::string(8 - std::min<size_t>(preset.name.size(), 7), ' ') +
            (preset.base.empty() ? "" : "as " + preset.base + ", but ") + preset.flags;
    for (const auto& [value, flags] : preset.cases)
      text +=
          "\n          with " + (value.empty() ? "any other" : "--" + preset.depends_on + " " + value) + ": " + flags;
  }
  return text;
}

}  // namespace runnel
