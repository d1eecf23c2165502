#include "engine/text.h"

#include <algorithm>

#include "engine/check.h"

namespace runnel {
namespace {

// The first character of a text: its code point, or bytes = 0 if the text does not begin with one.
struct Character {
  char32_t code = 0;
  size_t bytes = 0;
};

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (bytes == 0 || text.size() < bytes) return {};
  char32_t code = lead & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const char32_t least = bytes == 2 ? 0x80 : bytes == 3 ? 0x800 : 0x10000;
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  return code < least || code > 0x10ffff || is_surrogate ? Character{} : Character{code, bytes};
}

bool is_printable(char32_t code) {
  const auto between = [code](char32_t first, char32_t last) { return first <= code && code <= last; };
  const bool is_control = code < 0x20 || between(0x7f, 0x9f);
  const bool is_direction_or_line = between(0x200e, 0x200f) || between(0x2028, 0x202e) || between(0x2066, 0x2069);
  return !is_control && !is_direction_or_line;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = first_character(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

void check_text(std::string_view text, const std::string& where) {
  check(is_utf8(text), where, ": \"", excerpt(std::string(text)),
        "\" is not UTF-8; convert a text with iconv, a name with convmv");
}

std::string shown(std::string_view text, Lines lines) {
  constexpr const char* digits = "0123456789abcdef";
  std::string line;
  while (!text.empty()) {
    const Character c = first_character(text);
    const bool is_kept = lines == Lines::kept && (c.code == '\n' || c.code == '\t');
    const std::string_view bytes = text.substr(0, std::max<size_t>(c.bytes, 1));
    text.remove_prefix(bytes.size());
    if (is_kept || is_printable(c.code))  // code 0, which stands for an invalid character, is not
      line += bytes;
    else if (c.code == '\n' || c.code == '\r' || c.code == '\t')
      line += c.code == '\n' ? "\\n" : c.code == '\r' ? "\\r" : "\\t";
    else
      for (const char byte : bytes)
        line +=
            {'\\', 'x', digits[static_cast<unsigned char>(byte) >> 4], digits[static_cast<unsigned char>(byte) & 15]};
  }
  return line;
}

std::string excerpt(const std::string& text) {
  constexpr size_t longest = 60;
  size_t size = std::min(text.size(), longest);
  while (size < text.size() && size > longest - 4 && (text[size] & 0xc0) == 0x80) --size;  // between characters
  return shown(std::string_view(text).substr(0, size)) + (size < text.size() ? "..." : "");
}

Error::Error(const std::string& sentence) : std::runtime_error(shown(sentence)) {}

}  // namespace runnel
