// Lists of settings (models/settings.h) from text and JSON: flags, config.json, and the description of a checkpoint's
// model.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/settings.h"

namespace runnel {

// Sets the value from what a user wrote. Whole numbers are decimal digits, with a minus or without; others may have a
// point and an exponent, whatever the locale. Returns "", or the problem, and then changes nothing.
std::string set_value(const Setting& setting, const std::string& text);
nlohmann::json to_json(const Settings& list);  // {name: value}
// Takes over the values of a JSON object. Returns "", or the first problem: a value that is missing, of another type or
// out of its range, with the setting's name.
std::string read_json(const Settings& list, const nlohmann::json& json);

}  // namespace runnel
