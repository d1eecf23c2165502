#include "models/json.h"

namespace runnel {

using nlohmann::json;

namespace {

// Counts values and nesting of a text, and stops at the limits. A pass by itself: json::parse with a callback looks
// through an object again after each of its members, which takes quadratic time.
class LimitCounter : public nlohmann::json_sax<json> {
 public:
  explicit LimitCounter(const JsonLimits& limits) : left_(limits) {}
  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool key(string_t&) override { return count(); }
  bool start_object(size_t) override { return left_.depth-- > 0 && count(); }
  bool start_array(size_t) override { return left_.depth-- > 0 && count(); }
  bool end_object() override { return ++left_.depth, count(); }
  bool end_array() override { return ++left_.depth, count(); }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  bool count() { return left_.values-- > 0; }

  JsonLimits left_;
};

}  // namespace

json parse_json(const std::string& text, const JsonLimits& limits) {
  LimitCounter counter(limits);
  if (!json::sax_parse(text, &counter)) return json(json::value_t::discarded);
  return json::parse(text, nullptr, false);
}

std::string short_text(const json& value) {
  constexpr size_t most = 60;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);  // ASCII: it can be cut anywhere
  if (text.size() > most) text.replace(most - 3, std::string::npos, "...");
  return text;
}

}  // namespace runnel
