// The allowed values of a setting: a range, or one of some words.
#pragma once
#include <cmath>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace runnel {

struct Range {
  double low, high = HUGE_VAL;
};
using Choices = std::vector<std::string>;  // "cuda:N" stands for cuda: and a number of at most four digits

// The allowed values; by default, all of the type.
class Allowed {
 public:
  Allowed() = default;
  Allowed(Range range) : rule_(range) {}
  Allowed(Choices choices) : rule_(std::move(choices)) {}

  std::string description() const;               // "from 1 to 1024", "linear, softmax"; "" for anything
  Choices choices() const;                       // the words, without "cuda:N"; {} if it is not one of some words
  std::string problem(long double value) const;  // a sentence without its subject, or ""
  std::string problem(const std::string& text) const;
  template <class T>
  std::string problem_of(const T& value) const;  // of any setting's type

 private:
  std::variant<std::monostate, Range, Choices> rule_;
};
inline Allowed in_range(double low, double high = HUGE_VAL) { return Range{low, high}; }  // NaN is in no range
inline Allowed one_of(Choices words) { return words; }

template <class T>
std::string Allowed::problem_of(const T& value) const {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::vector<std::string>>)
    return "";
  else if constexpr (std::is_arithmetic_v<T>)
    return choices().empty() ? problem(static_cast<long double>(value)) : problem(std::to_string(value));
  else
    return problem(value);
}

std::string number_text(double x);  // with up to 15 digits

}  // namespace runnel
