#include "models/settings_text.h"

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/text.h"

namespace runnel {
namespace {

// std::from_chars: where the number that the text begins with ends. LLVM's library has it for whole numbers only, and
// strtod also takes blanks and a plus before a number, and hexadecimal digits.
template <class T>
std::from_chars_result parse(const std::string& text, T& value) {
  const char* const begin = text.c_str();
#if !defined(__cpp_lib_to_chars)
  if constexpr (!std::is_integral_v<T>) {
    char* stop = nullptr;
    errno = 0;
    value = std::strtod(begin, &stop);
    if (stop == begin || *begin == '+' || std::isspace(static_cast<unsigned char>(*begin)) ||
        text.find_first_of("xX") != std::string::npos)
      return {begin, std::errc::invalid_argument};
    return {stop, errno == ERANGE ? std::errc::result_out_of_range : std::errc()};
  } else
#endif
    return std::from_chars(begin, begin + text.size(), value);
}

// The sentence that is wrong with the text, or "".
template <class T>
std::string read_number(const Allowed& allowed, const std::string& text, T& value) {
  const char* const end = text.c_str() + text.size();
  const auto [stop, error] = parse(text, value);
  if (!allowed.choices().empty() && (stop != end || error != std::errc())) return allowed.problem(text);
  if (stop != end || error == std::errc::invalid_argument)
    return (std::is_integral_v<T> ? "is not a whole number " : "is not a number ") + allowed.description();
  if (error == std::errc()) return "";
  const bool has_end = !allowed.problem(HUGE_VALL).empty();
  return "is not a number " + allowed.description() +
         (has_end ? "" : " and at most " + std::to_string(std::numeric_limits<T>::max()));
}

}  // namespace

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
    if (!wrong.empty()) return wrong;
    std::swap(*value, given);
    wrong = problem_of(setting);
    if (!wrong.empty()) std::swap(*value, given);
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
      if (setting.old_files == OldFiles::may_lack_it) continue;
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
    if (const std::string wrong = problem_of(setting); !wrong.empty())
      return "\"" + setting.name + "\": " + excerpt(text_of(setting)) + " " + wrong;
  }
  return "";
}

}  // namespace runnel
