// Settings: a struct lists its fields once, as (name, value, allowed values, help). From that list come flags, ranges,
// --help, config.json, the description of a checkpoint's model, and the tables in the documentation.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "models/allowed.h"

namespace runnel {

// Whether files that an older version wrote may lack the setting: its value then stays as it is.
enum class OldFiles { have_it, may_lack_it };

// One line of a list. The value stays where it is: in a struct that outlives the list.
struct Setting {
  std::string name;
  std::variant<bool*, int64_t*, uint64_t*, double*, std::string*, std::vector<std::string>*> value;
  Allowed allowed;
  std::string help;
  OldFiles old_files = OldFiles::have_it;
  bool can_change_on_resume = false;  // whether a run that is resumed may have another value
  std::string topic = {};             // shown by --help TOPIC and not by --help; empty: always shown
};
using Settings = std::vector<Setting>;

// The list followed by more lines.
Settings extended(Settings list, const Settings& more);
Settings with_topic(const std::string& topic, Settings list);

std::string text_of(const Setting& setting);     // its value: 128, 0.1, true, linear
std::string problem_of(const Setting& setting);  // why its value is not allowed, a sentence without its subject; or ""

}  // namespace runnel
