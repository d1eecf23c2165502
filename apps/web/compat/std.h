// What Emscripten 3.1's standard library (LLVM 13) lacks of C++20 and the library uses. Included before everything.
#pragma once
#include <algorithm>
#include <functional>
#include <iterator>
#include <version>

namespace std {
#if !defined(__cpp_lib_bit_cast)
template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}
#endif
#if _LIBCPP_VERSION < 15000
namespace ranges {
template <class Range, class Test>
bool all_of(const Range& range, Test test) {
  return std::all_of(std::begin(range), std::end(range), test);
}
template <class Range, class Test>
auto count_if(const Range& range, Test test) {
  return std::count_if(std::begin(range), std::end(range), test);
}
template <class Range, class T, class Projection = std::identity>
auto find(const Range& range, const T& value, Projection projection = {}) {
  return std::find_if(std::begin(range), std::end(range),
                      [&](const auto& x) { return std::invoke(projection, x) == value; });
}
}  // namespace ranges
#endif
}  // namespace std
