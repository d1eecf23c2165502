#include "models/allowed.h"

#include <algorithm>
#include <sstream>

namespace runnel {

std::string number_text(double x) {
  std::ostringstream text;
  text.precision(15);
  text << x;
  return text.str();
}

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

}  // namespace runnel
