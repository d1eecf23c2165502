#include "models/json.h"

namespace runnel {

using nlohmann::json;

json parse_json(const std::string& text, const JsonLimits& limits) {
  struct BeyondLimits {};
  int64_t values = 0;
  const auto count = [&](int depth, json::parse_event_t, json&) {
    if (depth > limits.depth || ++values > limits.values) throw BeyondLimits();
    return true;
  };
  try {
    return json::parse(text, count, false);
  } catch (const BeyondLimits&) {
    return json(json::value_t::discarded);
  }
}

std::string short_text(const json& value) {
  constexpr size_t most = 60;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);  // ASCII: it can be cut anywhere
  if (text.size() > most) text.replace(most - 3, std::string::npos, "...");
  return text;
}

}  // namespace runnel
