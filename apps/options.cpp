#include "apps/options.h"

#include <fmt/format.h>
#include <omp.h>

#include <fstream>
#include <set>

namespace runnel {

CLI::Validator in_range(double low, double high) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return std::string();
        return fmt::format("{} is not a number from {} to {}", text, low, high);
      },
      fmt::format("{} to {}", low, high));
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  const std::string list = fmt::format("{}", fmt::join(words, ", "));
  return CLI::Validator(
      [=](const std::string& text) {
        const bool known = std::find(words.begin(), words.end(), text) != words.end();
        return known ? std::string() : fmt::format("{} is not one of {}", text, list);
      },
      list);
}

void Machine::prepare() {
  if (device == "cuda") release(allocate(64, Device::cuda), 64, Device::cuda);  // throws if there is none
  if (threads == 0) threads = omp_get_max_threads();
  omp_set_num_threads(static_cast<int>(threads));
}

TransformerConfig Settings::model(int64_t vocabulary, int64_t outputs, int64_t max_length) const {
  check<UsageError>(width % heads == 0, "--heads ", heads, " does not divide --width ", width);
  check<UsageError>(width % 2 == 0, "--width ", width, " is odd; half of it codes the token, half the position");
  return {.layers = layers,
          .heads = heads,
          .head_dim = width / heads,
          .feed_forward = feed_forward,
          .vocabulary = vocabulary,
          .outputs = outputs,
          .max_length = max_length,
          .dropout = static_cast<float>(dropout)};
}

nlohmann::json read_config(const std::filesystem::path& run_folder) {
  const std::filesystem::path path = run_folder / "config.json";
  std::ifstream file(path);
  check(file.is_open(), "there is no run to resume: cannot open ", path.string());
  nlohmann::json config = nlohmann::json::parse(file, nullptr, false);
  check(config.is_object(), path.string(), " is damaged: not a JSON object");
  return config;
}

void check_same_run(const nlohmann::json& began, const nlohmann::json& now) {
  static const std::set<std::string> changeable{"device",    "threads",        "steps",     "minutes",
                                                "log-every", "evaluate-every", "save-every"};
  for (const auto& [flag, value] : now.items())
    check<UsageError>(began[flag] == value || changeable.count(flag), "--", flag, " ", value.dump(),
                      ": the run to resume began with ", began[flag].dump(), " and cannot change it");
}

std::string preset_table(const std::vector<nlohmann::json>& presets) {
  std::string table = fmt::format("{:<18}", "Presets");
  for (const auto& preset : presets) table += fmt::format("{:>12}", preset["preset"].get<std::string>());
  for (const auto& [flag, value] : presets[0].items()) {
    const bool differs =
        std::any_of(presets.begin(), presets.end(),
                    [&, &key = flag, &first = value](const auto& preset) { return preset[key] != first; });
    if (!differs || flag == "preset") continue;
    table += fmt::format("\n  --{:<14}", flag);
    for (const auto& preset : presets)
      table += fmt::format("{:>12}",
                           preset[flag].is_string() ? preset[flag].template get<std::string>() : preset[flag].dump());
  }
  return table;
}

}  // namespace runnel
