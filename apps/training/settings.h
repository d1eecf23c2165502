// The settings of a training run, its presets, and --resume, which takes them from the run's config.json.
#pragma once
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/subcommand.h"
#include "apps/training/communicator.h"
#include "apps/training/presets.h"
#include "engine/check.h"

namespace runnel {

// From --reduction and --gradients. Throws UsageError if they do not go together.
SumOptions sum_options(const std::string& reduction, const std::string& gradients);

// The size of the parts of a batch if the user names none: one of `most` parts, or as near as a power of two can divide
// the batch; on a GPU by itself all of it.
int64_t default_part(int64_t batch, Device device, int64_t most = 8);

// The settings of every training. The defaults are the paper's (copy task).
struct TrainSettings : RuntimeOptions {
  std::string preset = "paper";
  int64_t batch = 64;
  int64_t micro_batch = 0;  // 0: an eighth of the batch, or the nearest possible part
  std::string reduction = "exact";
  std::string gradients = "f32";
  bool shard = false;
  int64_t steps = 10000;
  double minutes = 0;  // of training in all, over all resumes; 0: no limit
  double lr = 1e-3;
  std::string schedule = "step";
  int64_t warmup = 0;  // updates
  int64_t lr_step = 3000;
  int64_t patience = 2;  // validations
  std::string optimizer = "radam";
  double beta2 = 0.999;
  double adam_eps = 1e-8;
  double weight_decay = 0.01;
  double muon_decay = 0.3;
  double clip = 1;
  double global_clip = 0;
  int64_t log_every = 10;
  int64_t evaluate_every = 500;
  int64_t save_every = 500;

  std::string config_file;
  std::string out;  // the run folder
  bool resume = false;
  bool overwrite = false;
  bool dry_run = false;

  // The size of the parts of a batch: --micro-batch, or default_part(), by which eight threads or processes can share
  // the batch; with more processes, one part each. Throws UsageError that says how many processes can share the parts,
  // if processes() cannot.
  int64_t sequences_at_a_time() const;

  Settings list() override;
  // Sets the settings that an older version's config.json lacks to what its runs did.
  virtual void adapt_to(const nlohmann::json& config);
};
// The contents of config.json, and of each checkpoint but for the threads: every setting, with the preset.
nlohmann::json config_json(TrainSettings& settings);

// The config.json of a run. Throws Error if there is none, or if it cannot be read.
nlohmann::json read_config(const std::filesystem::path& run_folder);
// Takes over a run's settings. Throws Error if it lacks one, or one is out of its range.
void take_over(TrainSettings& settings, const nlohmann::json& began);
// A file in the form of config.json, which may lack settings. Throws Error if there is none, or if it is something
// else.
nlohmann::json read_settings_file(const std::filesystem::path& path);
// Applies the settings of the file. Throws Error that names the first setting that does not exist or has an impossible
// value.
void apply_settings_file(TrainSettings& settings, const nlohmann::json& values, const std::string& path);
// UsageError if the run began with another value of something that a run cannot change on the way.
void check_same_run(const nlohmann::json& began, TrainSettings& now);

// The data folder of --data, absolute, so that a resumed run finds it from any folder. Throws UsageError if config.json
// could not hold it, since it is not UTF-8.
std::string data_for_config(const std::string& data);

// For a benchmark that trains several models: settings of a run in this folder, which is continued if it is there.
// Throws UsageError as check_same_run.
void set_run(TrainSettings& settings, const std::filesystem::path& folder);

// The flags and the function of the subcommand `train` of a task.
template <class S>
void add_training_flags(Subcommand command, const S& defaults, const Presets& presets,
                        const std::function<int(S&)>& run) {
  command.set_footer(preset_text(presets));
  Choices names;
  for (const Preset& preset : presets) names.push_back(preset.name);
  const auto settings = std::make_shared<S>(with_preset(defaults, presets, names[0]));
  command.add_flags([settings, names] {
    return extended(
        {{"preset", &settings->preset, one_of(names), "values of all flags that are not given"},
         {"config",
          &settings->config_file,
          {},
          "JSON file of settings, such as a run's config.json: they replace the preset's; flags replace them"},
         {"out", &settings->out, {}, "run folder to write"},
         {"resume", &settings->resume, {}, "continue the run in --out, with its configuration"},
         {"overwrite",
          &settings->overwrite,
          {},
          "move the run in --out aside, to FOLDER.old-1 and so on, and begin anew"},
         {"dry-run", &settings->dry_run, {}, "print the memory and time that the run would take; write nothing"},
         settings->quiet_flag()},
        settings->list());
  });

  command.when_parsed([=]() -> Command {
    check<UsageError>(settings->config_file.empty() || !settings->resume,
                      "--config and --resume: give one of them; a run that is resumed has its own settings");
    const std::string file = settings->config_file;
    nlohmann::json given = file.empty() ? nlohmann::json::object() : read_settings_file(file);
    if (!given.contains("preset") || command.is_given("preset")) given["preset"] = settings->preset;
    const auto is_given = [&](const std::string& name) { return given["preset"] == nlohmann::json(name); };
    const auto preset = std::ranges::find_if(names, is_given);
    check(preset != names.end(), file, ": \"preset\" is not one of ", one_of(names).description());
    *settings = with_preset(defaults, presets, *preset);
    apply_settings_file(*settings, given, file);
    command.apply_flags();
    set_preset_cases(settings->list(), presets, *preset);
    apply_settings_file(*settings, given, file);
    command.apply_flags();
    check<UsageError>(!settings->resume || !settings->overwrite, "--resume and --overwrite: give one of them");
    if (settings->resume) {
      const nlohmann::json began = read_config(settings->out);
      take_over(*settings, began);
      command.apply_flags();
      check_same_run(began, *settings);
    }
    return [=] {
      settings->prepare();
      settings->micro_batch = settings->sequences_at_a_time();  // is kept, whoever resumes the run
      return run(*settings);
    };
  });
}

// The subcommand `train`. S derives from TrainSettings; the first preset is the default. Precedence: the preset, or
// with --resume the run's config.json; then the file --config; then the flags that were given.
template <class S>
void add_training(Subcommand task, const char* help, S defaults, Presets presets, std::function<int(S&)> run) {
  defaults.out = "runs/" + task.name();
  task.add("train", help, [=](Subcommand command) { add_training_flags(command, defaults, presets, run); });
}

}  // namespace runnel
