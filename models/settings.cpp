#include "models/settings.h"

#include <algorithm>
#include <sstream>

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

}  // namespace

std::string problem_of(const Setting& setting) {
  return std::visit([&](const auto* value) { return problem(setting.allowed, *value); }, setting.value);
}

}  // namespace runnel
