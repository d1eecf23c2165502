// report.html: a run on one page that needs no other file and no network.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace runnel {

struct Report {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;  // a name and a value each
  nlohmann::json settings;                                 // {name: value}
};

// Writes report.html into a run folder, with its loss.png and at most twelve pictures of its samples/ inside. Throws
// Error if it cannot be written.
void write_report(const std::filesystem::path& run, const Report& report);

}  // namespace runnel
