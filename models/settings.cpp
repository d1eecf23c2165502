#include "models/settings.h"

namespace runnel {

Settings extended(Settings list, const Settings& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

Settings with_topic(const std::string& topic, Settings list) {
  for (Setting& setting : list) setting.topic = topic;
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

std::string problem_of(const Setting& setting) {
  return std::visit([&](const auto* value) { return setting.allowed.problem_of(*value); }, setting.value);
}

}  // namespace runnel
