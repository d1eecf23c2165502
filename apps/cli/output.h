// Standard output and error for runs of days: text that cannot be written is dropped, and main says so at the end.
// Control characters become escapes (shown(), engine/text.h), but for line feeds and tabs.
#pragma once
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace runnel {

// To be called first in main. A closed descriptor 0, 1 or 2 is opened on /dev/null, since otherwise the next file that
// is opened would get its number, and with it whatever is printed.
void prepare_output();
// Whether to drop the output: on all processes of several but the first.
void drop_output(bool drop);
// Flushes. Returns why standard output could not be written, or "". A reader that has left, as in
// `runnel ... | head`, is no problem.
std::string output_problem();

bool output_is_wanted();  // false once something could not be written

// For --json: text goes to stderr from now on, and only print_json writes to stdout.
void print_text_to_stderr();
void print_json(const nlohmann::json& object);

// The program's own escape sequences, as they are.
void print_escapes(FILE* stream, const std::string& text);

}  // namespace runnel
