// Text that came from outside, as names of files and classes: whether it may be kept, and how it is printed.
#pragma once
#include <string>
#include <string_view>

namespace runnel {

// Whether all of it is UTF-8 (RFC 3629), which JSON, and so config.json, checkpoints and reports, must be.
bool is_utf8(std::string_view text);

// Throws Error that begins with `where`, a file and a line or a folder, unless the text is UTF-8: for all that goes
// into a checkpoint or a report.
void check_text(std::string_view text, const std::string& where);

enum class Lines { escaped, kept };

// The text as it may be printed on a terminal: control characters, characters that change the direction of writing, and
// bytes that are not UTF-8 become escapes such as \n and \x1b. Lines::kept leaves line feeds and tabs. A second call
// changes nothing.
std::string shown(std::string_view text, Lines lines = Lines::escaped);

// For a message: shown, at most 60 bytes of it.
std::string excerpt(const std::string& text);

}  // namespace runnel
