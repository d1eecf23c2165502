// JSON from files that anybody may have written: bounded in depth and size before it costs memory.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace runnel {

struct JsonLimits {
  int depth = 8;            // of arrays and objects inside one another
  int64_t values = 20'000;  // keys, values, beginnings and ends
};

// Discarded (is_discarded) if the text is not JSON or is beyond the limits. Takes linear time.
nlohmann::json parse_json(const std::string& text, const JsonLimits& limits = {});

// For messages: at most 60 characters of valid UTF-8.
std::string short_text(const nlohmann::json& value);

}  // namespace runnel
