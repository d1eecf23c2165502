#include "models/settings.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/check.h"
#include "engine/text.h"

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

namespace {

// "cuda:" of the choice "cuda:N", which stands for that with any number; else "".
std::string before_number(const std::string& choice) {
  return choice.ends_with(":N") ? choice.substr(0, choice.size() - 1) : "";
}

bool matches(const std::string& text, const std::string& choice) {
  const std::string prefix = before_number(choice);
  if (prefix.empty()) return text == choice;
  return text.size() > prefix.size() && text.size() < prefix.size() + 5 && text.starts_with(prefix) &&
         text.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
}

}  // namespace

Choices Allowed::choices() const {
  const Choices* words = std::get_if<Choices>(&rule_);
  Choices written = words ? *words : Choices();
  std::erase_if(written, [](const std::string& word) { return !before_number(word).empty(); });
  return written;
}

// 64-bit integers are exact in the 64 bits of a long double's mantissa.
std::string Allowed::problem(long double value) const {
  const Range* range = std::get_if<Range>(&rule_);
  return !range || (value >= range->low && value <= range->high) ? "" : "is not a number " + description();
}

std::string Allowed::problem(const std::string& text) const {
  const Choices* words = std::get_if<Choices>(&rule_);
  const auto fits = [&](const std::string& word) { return matches(text, word); };
  return !words || std::any_of(words->begin(), words->end(), fits) ? "" : "is not one of " + description();
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

namespace {

template <class T>
std::string problem(const Allowed& allowed, const T& value) {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::vector<std::string>>)
    return "";
  else if constexpr (std::is_arithmetic_v<T>)
    return allowed.choices().empty() ? allowed.problem(static_cast<long double>(value))
                                     : allowed.problem(std::to_string(value));
  else
    return allowed.problem(value);
}

// The sentence that is wrong with the text, or "".
template <class T>
std::string read_number(const Allowed& allowed, const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (!allowed.choices().empty() && (stop != end || error != std::errc())) return allowed.problem(text);
  if (stop != end || error == std::errc::invalid_argument)
    return (std::is_integral_v<T> ? "is not a whole number " : "is not a number ") + allowed.description();
  if (error == std::errc()) return "";
  const bool has_end = !allowed.problem(HUGE_VALL).empty();
  return "is not a number " + allowed.description() +
         (has_end ? "" : " and at most " + std::to_string(std::numeric_limits<T>::max()));
}

}  // namespace

std::string problem_of(const Setting& setting) {
  const std::string wrong =
      std::visit([&](const auto* value) { return problem(setting.allowed, *value); }, setting.value);
  return wrong.empty() ? "" : excerpt(text_of(setting)) + " " + wrong;
}

std::string set_value(const Setting& setting, const std::string& text) {
  const auto read = [&](auto* value) -> std::string {
    using T = std::decay_t<decltype(*value)>;
    T given{};
    std::string wrong;
    if constexpr (std::is_same_v<T, bool>) {
      if (text != "true" && text != "false") wrong = "is neither true nor false";
      given = text == "true";
    } else if constexpr (std::is_arithmetic_v<T>) {
      wrong = read_number(setting.allowed, text, given);
    } else {
      given = T{text};
    }
    if (wrong.empty()) wrong = problem(setting.allowed, given);
    if (wrong.empty()) *value = std::move(given);
    return wrong;
  };
  const std::string wrong = std::visit(read, setting.value);
  return wrong.empty() ? "" : excerpt(text) + " " + wrong;
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
            if (found->is_number_unsigned() && found->template get<uint64_t>() > INT64_MAX) return false;
          }
          *value = found->template get<T>();
          return true;
        },
        setting.value);
    if (!fits) return "\"" + setting.name + "\" has another type";
    if (const std::string wrong = problem_of(setting); !wrong.empty()) return "\"" + setting.name + "\": " + wrong;
  }
  return "";
}

}  // namespace runnel
