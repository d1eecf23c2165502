#include "apps/options.h"

#include <fmt/format.h>
#include <omp.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <set>
#include <type_traits>

#include "engine/numerics.h"

namespace runnel {

Allowed in_range(double low, double high) {
  const std::string range =
      std::isfinite(high) ? fmt::format("from {} to {}", low, high) : fmt::format("of at least {}", low);
  return {range, [=](const std::string& text) {
            double value = 0;
            const bool inside = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
            return inside ? std::string() : text + " is not a number " + range;
          }};
}

Allowed one_of(const std::vector<std::string>& words) {
  const std::string list = CLI::detail::join(words, ", ");
  return {list, [=](const std::string& text) {
            const bool known = std::find(words.begin(), words.end(), text) != words.end();
            return known ? std::string() : fmt::format("{} is not one of {}", text, list);
          }};
}

std::string Word::text() const { return app_->get_name(); }

Word Word::add(const std::string& word, const std::string& help, const std::string& footer) const {
  CLI::App* const app = app_->add_subcommand(word, help);
  app->footer(footer);
  return Word(*app);
}

template <class T>
void Word::add_flag(const std::string& flag, T& value, const Allowed& allowed, const char* help) const {
  if constexpr (std::is_same_v<T, bool>) {
    app_->add_flag("--" + flag, value, help);
  } else {
    CLI::Option* const option = app_->add_option("--" + flag, value, help);
    if (allowed.problem) option->check(allowed.problem, allowed.description);
  }
}
template void Word::add_flag(const std::string&, bool&, const Allowed&, const char*) const;
template void Word::add_flag(const std::string&, int64_t&, const Allowed&, const char*) const;
template void Word::add_flag(const std::string&, uint64_t&, const Allowed&, const char*) const;
template void Word::add_flag(const std::string&, double&, const Allowed&, const char*) const;
template void Word::add_flag(const std::string&, std::string&, const Allowed&, const char*) const;

void Word::when_parsed(std::function<void()> call) const { app_->callback(std::move(call)); }

void Word::apply_flags() const {
  for (CLI::Option* option : app_->get_options())
    if (option->count()) option->run_callback();
}

void Machine::prepare() {
  const std::string problem = device == "cpu" ? "" : why_unavailable(Device::cuda);
  if (device == "auto") device = problem.empty() && !cuda_is_emulated() ? "cuda" : "cpu";
  check(device == "cpu" || problem.empty(), "--device cuda: ", problem);
  const bool cuda = device == "cuda";
  if (cuda && cuda_is_emulated())
    fmt::print(stderr, "there is no GPU in this build: the CUDA kernels run on the CPU, many times slower\n");
  if (precision == "auto") precision = cuda ? "tf32" : has_bf16() ? "bf16" : "f32";
  check<UsageError>(cuda || precision != "tf32", "--precision tf32 is for --device cuda; give f32 or bf16");
  set_precision(precision == "bf16"   ? Precision::bf16
                : precision == "tf32" ? Precision::tf32
                                      : Precision::f32,
                where());
  if (threads == 0) threads = omp_get_max_threads();
  // Under OMP_THREAD_LIMIT a team is smaller than was asked for, and oneDNN leaves undone what the missing threads had.
  threads = std::min<int64_t>(threads, omp_get_thread_limit());
  omp_set_num_threads(static_cast<int>(threads));
}

TransformerConfig Settings::model(int64_t vocabulary, int64_t outputs, int64_t max_length) const {
  check<UsageError>(width % heads == 0, "--heads ", heads, " does not divide --width ", width);
  check<UsageError>(width % 2 == 0, "--width ", width, " is odd; half of it codes the token, half the position");
  check<UsageError>(buckets % 2 == 0, "--buckets ", buckets, " is odd; each axis of a rotation has two sides");
  return {.layers = layers,
          .heads = heads,
          .head_dim = width / heads,
          .feed_forward = feed_forward,
          .vocabulary = vocabulary,
          .outputs = outputs,
          .max_length = max_length,
          .dropout = static_cast<float>(dropout),
          .attention = attention_named(attention),
          .lsh = {rounds, buckets, chunk},
          .recompute = recompute};
}

nlohmann::json read_config(const std::filesystem::path& run_folder) {
  const std::filesystem::path path = run_folder / "config.json";
  std::ifstream file(path);
  check(file.is_open(), "there is no run to resume: cannot open ", path.string());
  nlohmann::json config = nlohmann::json::parse(file, nullptr, false);
  check(config.is_object(), path.string(), " is damaged: not a JSON object");
  return config;
}

bool is_changeable(const std::string& flag) {
  static const std::set<std::string> changeable{"device",         "threads",    "steps",       "minutes",  "log-every",
                                                "evaluate-every", "save-every", "micro-batch", "recompute"};
  return changeable.contains(flag);
}

void check_same_run(const nlohmann::json& began, const nlohmann::json& now) {
  for (const auto& [flag, value] : now.items())
    if (!is_changeable(flag))
      check<UsageError>(began[flag] == value, "--", flag, " ", value.dump(), ": the run to resume began with ",
                        began[flag].dump(), " and cannot change it");
}

std::string preset_table(const std::vector<nlohmann::json>& presets) {
  const auto padded = [](const nlohmann::json& value) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    return std::string(text.size() < 13 ? 13 - text.size() : 1, ' ') + text;
  };
  const auto row = [&](const std::string& label, const std::string& key) {
    std::string text = label + std::string(24 - std::min<size_t>(label.size(), 23), ' ');
    for (const auto& preset : presets) text += padded(preset[key]);
    return text;
  };
  std::string table = row("Presets:", "preset");
  for (const auto& [key, value] : presets[0].items()) {
    const auto same = [&, &name = key, &first = value](const auto& preset) { return preset[name] == first; };
    if (key != "preset" && !std::all_of(presets.begin(), presets.end(), same)) table += "\n" + row("  --" + key, key);
  }
  return table;
}

}  // namespace runnel
