// What the tests read in the sources.
#pragma once
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/paths.h"

namespace runnel::test {

// The files of ours that a file includes, as paths from the root: "engine/tape.h", <runnel/engine/tape.h>.
inline std::vector<std::string> own_includes(const std::string& file) {
  static const std::regex own(R"re(^#include (?:"|<runnel/)([^">]+)[">])re");
  std::vector<std::string> found;
  std::ifstream in(source_dir() / file);
  std::smatch m;
  for (std::string line; std::getline(in, line);)
    if (std::regex_search(line, m, own)) found.push_back(m.str(1));
  return found;
}

// The file, all files of ours that it includes, and the sources of those headers, with what they include.
inline std::set<std::string> closure(const std::string& file) {
  std::set<std::string> all;
  std::vector<std::string> next{file};
  while (!next.empty()) {
    const std::string one = next.back();
    next.pop_back();
    if (!std::filesystem::exists(source_dir() / one) || !all.insert(one).second) continue;
    const std::vector<std::string> included = own_includes(one);
    next.insert(next.end(), included.begin(), included.end());
    if (one.ends_with(".h")) next.push_back(one.substr(0, one.size() - 1) + "cpp");
  }
  return all;
}

}  // namespace runnel::test
