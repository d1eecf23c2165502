// The tables of a checkpoint's tensors in docs/ against the parameters of models.
#pragma once
#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "models/encoder.h"
#include "tests/check.h"
#include "tests/paths.h"

namespace runnel::test {

inline const EncoderConfig small_encoder{.layers = 1, .heads = 2, .head_dim = 4, .feed_forward = 8};

// "a.{b,c}" -> a.b, a.c
inline std::vector<std::string> expanded(const std::string& text) {
  const size_t begin = text.find('{'), end = text.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {text};
  std::vector<std::string> all;
  for (size_t at = begin; at < end;) {
    const size_t next = std::min(text.find(',', at + 1), end);
    const std::string word = text.substr(at + 1, next - at - 1);
    for (const std::string& one : expanded(text.substr(0, begin) + word + text.substr(end + 1))) all.push_back(one);
    at = next;
  }
  return all;
}

// The names in the rows | `name` | ... | below the heading "Checkpoints" of a page.
inline std::set<std::string> tensors_of_page(const std::string& page) {
  static const std::regex row(R"(^\| `([\w.{},]+)` \| .*\|$)");
  std::set<std::string> names;
  std::ifstream file(source_dir() / "docs" / page);
  bool is_below = false;
  std::smatch m;
  for (std::string line; std::getline(file, line);) {
    is_below = is_below || line == "## Checkpoints";
    if (is_below && std::regex_match(line, m, row))
      for (const std::string& name : expanded(m.str(1))) names.insert(name);
  }
  return names;
}

// The names that parameters have in a table: n stands for the number of a layer.
inline void append_names(std::set<std::string>& names, const Parameters& parameters) {
  static const std::regex number(R"(\.\d+\.)"), layer(R"(_l\d+)");
  for (const NamedTensor& parameter : parameters) {
    std::string name = std::regex_replace(std::regex_replace(parameter.name, number, ".n."), layer, "_ln");
    if (name.starts_with("encoder.")) name.replace(0, 7, "transformer");
    names.insert(name);
  }
}

inline void check_names(const std::set<std::string>& shown, const std::set<std::string>& expected) {
  for (const std::string& name : expected) CHECK_MESSAGE(shown.contains(name), name << " is not in the table");
  for (const std::string& name : shown) CHECK_MESSAGE(expected.contains(name), name << " is no tensor");
}

// A package's table has the tensors that are not in the core's.
inline void check_names_of_package(const std::string& page, std::set<std::string> expected) {
  for (const std::string& name : tensors_of_page("run-folder.md")) expected.erase(name);
  check_names(tensors_of_page(page), expected);
}

}  // namespace runnel::test
