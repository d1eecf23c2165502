#include "models/settings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/check.h"

namespace runnel {
namespace {

std::string number_text(double x) {
  std::ostringstream text;
  text.precision(15);
  text << x;
  return text.str();
}

}  // namespace

std::string Allowed::description() const {
  if (const Range* range = std::get_if<Range>(&rule_))
    return std::isfinite(range->high) ? "from " + number_text(range->low) + " to " + number_text(range->high)
                                      : "of at least " + number_text(range->low);
  std::string list;
  if (const Choices* words = std::get_if<Choices>(&rule_))
    for (const std::string& word : *words) list += (list.empty() ? "" : ", ") + word;
  return list;
}

std::string Allowed::problem(const std::string& text) const {
  if (const Range* range = std::get_if<Range>(&rule_)) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool inside = !text.empty() && *end == '\0' && value >= range->low && value <= range->high;
    if (!inside) return text + " is not a number " + description();
  }
  if (const Choices* words = std::get_if<Choices>(&rule_))
    if (std::find(words->begin(), words->end(), text) == words->end()) return text + " is not one of " + description();
  return "";
}

Settings extended(Settings list, const Settings& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

std::string text_of(const Setting& setting) {
  return std::visit(
      [](const auto* value) -> std::string {
        using T = std::decay_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, std::string>)
          return *value;
        else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          std::string words;
          for (const std::string& word : *value) words += (words.empty() ? "" : " ") + word;
          return words;
        } else if constexpr (std::is_same_v<T, bool>)
          return *value ? "true" : "false";
        else if constexpr (std::is_same_v<T, double>)
          return number_text(*value);
        else
          return std::to_string(*value);
      },
      setting.value);
}

nlohmann::json to_json(const Settings& list) {
  nlohmann::json json = nlohmann::json::object();
  for (const Setting& setting : list)
    std::visit([&](const auto* value) { json[setting.name] = *value; }, setting.value);
  return json;
}

std::string read_json(const Settings& list, const nlohmann::json& json) {
  for (const Setting& setting : list) {
    const auto found = json.find(setting.name);
    if (found == json.end()) {
      if (setting.since == Since::later) continue;
      return "\"" + setting.name + "\" is missing";
    }
    const bool fits = std::visit(
        [&](auto* value) {
          using T = std::decay_t<decltype(*value)>;
          if constexpr (std::is_same_v<T, bool>) {
            if (!found->is_boolean()) return false;
          } else if constexpr (std::is_same_v<T, std::string>) {
            if (!found->is_string()) return false;
          } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            if (!found->is_array()) return false;
          } else if constexpr (std::is_same_v<T, double>) {
            if (!found->is_number()) return false;
          } else if constexpr (std::is_same_v<T, uint64_t>) {
            if (!found->is_number_unsigned()) return false;
          } else {
            if (!found->is_number_integer()) return false;
          }
          *value = found->template get<T>();
          return true;
        },
        setting.value);
    if (!fits) return "\"" + setting.name + "\" has another type";
    if (const std::string problem = setting.allowed.problem(text_of(setting)); !problem.empty())
      return "\"" + setting.name + "\": " + problem;
  }
  return "";
}

}  // namespace runnel
