// Words of a user: numbers, lists of images, and what messages quote.
#include "apps/cli/terminal.h"
#include "apps/images/images.h"
#include "engine/text.h"
#include "models/settings_text.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  const std::string word(reinterpret_cast<const char*>(data), size);
  static int64_t whole = 3;
  static uint64_t natural = 3;
  static double real = 3;
  static std::string choice = "linear";
  static const Setting settings[] = {{"whole", &whole, in_range(-9, 1e6), ""},
                                     {"natural", &natural, in_range(1), ""},
                                     {"real", &real, in_range(0, 10), ""},
                                     {"choice", &choice, one_of({"linear", "softmax"}), ""}};
  for (const Setting& setting : settings) {
    set_value(setting, word);
    if (!problem_of(setting).empty()) std::abort();
  }
  const std::string quoted = excerpt(word);
  if (!is_utf8(quoted) || quoted.size() > 6 * 60 + 3) std::abort();
  shell_quoted(word);
  return fuzz::ends_well([&] { parse_index(word, 100); });
}
