// The command line. Every command's options are one struct; its member `each` lists them once, as (flag, value, what it
// may be, help). From that list come the flags, their ranges, --help, the table of presets, config.json and what
// --resume reads back.
#pragma once
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/check.h"
#include "engine/device.h"
#include "engine/random.h"
#include "models/transformer.h"

namespace CLI {
class App;  // CLI11, which takes long to compile: only options.cpp and main.cpp do
}

namespace runnel {

// What to do once the command line is understood; returns the exit status.
using Command = std::function<int()>;

// What the text of a flag may be; by itself, anything.
struct Allowed {
  std::string description = {};                                 // for --help
  std::function<std::string(const std::string&)> problem = {};  // a sentence, or "" if there is none
};
Allowed in_range(double low, double high = HUGE_VAL);  // NaN is in no range
Allowed one_of(const std::vector<std::string>& words);

// A word of the command line and what may follow it: runnel, runnel mnist, runnel mnist train.
class Word {
 public:
  explicit Word(CLI::App& app) : app_(&app) {}
  std::string text() const;
  Word add(const std::string& word, const std::string& help, const std::string& footer = "") const;
  // T is bool, int64_t, uint64_t, double or std::string. The value that it has now is the default.
  template <class T>
  void add_flag(const std::string& flag, T& value, const Allowed& allowed, const char* help) const;
  void when_parsed(std::function<void()> call) const;
  void apply_flags() const;  // gives the values of flags that were given, once more

 private:
  CLI::App* app_;
};

void add_copy(Word program, Command& chosen);
void add_mnist(Word program, Command& chosen);
void add_cifar10(Word program, Command& chosen);
void add_check(Word program, Command& chosen);
void add_bench(Word program, Command& chosen);

// What every command that computes takes.
struct Machine {
  std::string device = "auto";
  std::string precision = "auto";
  int64_t threads = 0;  // 0: all cores
  uint64_t seed = 1;

  template <class Each>
  void each(Each&& option) {
    option("device", device, one_of({"auto", "cpu", "cuda"}), "where to compute");
    option("precision", precision, one_of({"auto", "f32", "tf32", "bf16"}),
           "what matrix products round their operands to; auto: tf32 on CUDA, bf16 if the processor has it, else f32");
    option("threads", threads, in_range(0, 1024), "CPU threads; 0, which is also the default, means all cores");
    option("seed", seed, in_range(0), "of everything random");
  }

  // Sets threads, device, precision and how tiny numbers are computed. UsageError or Error if there is no such device
  // or it cannot do that.
  void prepare();
  Device where() const { return device == "cuda" ? Device::cuda : Device::cpu; }
};

// What every training takes. The values here are the paper's (copy task).
struct Settings : Machine {
  std::string preset = "paper";
  int64_t layers = 4;
  int64_t width = 256;  // D, shared by the heads
  int64_t heads = 8;
  int64_t feed_forward = 1024;
  double dropout = 0.1;
  std::string attention = "linear";
  int64_t rounds = 4;
  int64_t buckets = 32;
  int64_t chunk = 32;

  int64_t batch = 64;
  int64_t micro_batch = 0;  // 0: the whole batch
  bool recompute = false;
  int64_t steps = 10000;
  double minutes = 0;  // of training in all, over all resumes; 0: no limit
  double lr = 1e-3;
  std::string schedule =
      "step";  // constant; step: x 0.1 after `lr_step` updates; quadratic: x (1 - part of the run done)^2
  int64_t lr_step = 3000;
  std::string optimizer = "radam";
  double beta2 = 0.999;
  double weight_decay = 0.01;
  double clip = 1;
  double global_clip = 0;

  int64_t log_every = 10;
  int64_t evaluate_every = 500;
  int64_t save_every = 500;

  std::string out;  // the run folder
  bool resume = false;
  bool dry_run = false;

  template <class Each>
  void each(Each&& option) {
    Machine::each(option);
    option("layers", layers, in_range(1, 1024), "encoder layers");
    option("width", width, in_range(2, 65536), "the model's width, shared by the heads");
    option("heads", heads, in_range(1, 1024), "attention heads; must divide --width");
    option("feed-forward", feed_forward, in_range(1, 1 << 20), "width of the feed-forward layers");
    option("dropout", dropout, in_range(0, 0.95), "probability");
    option("attention", attention, one_of({"linear", "softmax", "lsh"}), "how positions look at those before them");
    option("rounds", rounds, in_range(1, 64), "of hashing (--attention lsh)");
    option("buckets", buckets, in_range(2, 4096), "that positions are hashed into, an even number (--attention lsh)");
    option("chunk", chunk, in_range(1, 256),
           "positions of the sorted sequence that are taken together (--attention lsh)");
    option("batch", batch, in_range(1, 1 << 20), "sequences per update");
    option(
        "micro-batch", micro_batch, in_range(0, 1 << 20),
        "sequences whose gradients are computed at a time, then added up: less memory for the same update; 0: all of "
        "--batch");
    option("recompute", recompute, Allowed(),
           "keep only the layers' inputs and compute the rest again in the backward pass: less memory, more time, the "
           "same numbers");
    option("steps", steps, in_range(1), "updates");
    option("minutes", minutes, in_range(0, 1e6), "stop after so many minutes of training in all; 0: no limit");
    option("lr", lr, in_range(0, 100), "learning rate");
    option(
        "schedule", schedule, one_of({"constant", "step", "quadratic"}),
        "of the learning rate: constant, a tenth after --lr-step updates, or by the square of what is left of the run");
    option("lr-step", lr_step, in_range(1), "updates before the learning rate drops (--schedule step)");
    option("optimizer", optimizer, one_of({"radam", "muon"}),
           "muon: Muon, of gradients brought to norm 1, for the matrices of values and feed-forward layers, RAdam for "
           "the rest");
    option("beta2", beta2, in_range(0.9, 0.9999), "how slowly RAdam's mean of squared gradients forgets");
    option("weight-decay", weight_decay, in_range(0, 1), "decoupled, of what RAdam trains");
    option("clip", clip, in_range(0, 1e9), "largest gradient norm of each parameter tensor; 0: any");
    option("global-clip", global_clip, in_range(0, 1e9), "largest norm of all gradients together; 0: any");
    option("log-every", log_every, in_range(1), "updates per row of metrics.csv");
    option("evaluate-every", evaluate_every, in_range(1), "updates between validations and previews");
    option("save-every", save_every, in_range(1), "updates between checkpoints");
  }

  // The model that these settings describe. UsageError names the flag that cannot be.
  TransformerConfig model(int64_t vocabulary, int64_t outputs, int64_t max_length) const;
};

template <class Options>
nlohmann::json to_json(Options options) {
  nlohmann::json json = {{"preset", options.preset}};
  options.each([&](const std::string& flag, const auto& value, const Allowed&, const char*) { json[flag] = value; });
  return json;
}

// Adds a flag for each option.
template <class Options>
void add_flags(Word word, Options& options) {
  options.each([&](const std::string& flag, auto& value, const Allowed& allowed, const char* help) {
    word.add_flag(flag, value, allowed, help);
  });
}

// A subcommand without presets (evaluate, sample, ...): `run` gets the options.
template <class Options>
void add_command(Word app, Command& chosen, const char* name, const char* help, std::function<int(Options&)> run,
                 const Options& defaults = Options()) {
  const Word command = app.add(name, help);
  auto options = std::make_shared<Options>(defaults);
  add_flags(command, *options);
  command.when_parsed([=, &chosen] { chosen = [=] { return options->prepare(), run(*options); }; });
}

// The config.json of a run. Throws Error if there is none, or if it cannot be read.
nlohmann::json read_config(const std::filesystem::path& run_folder);
// Whether a run may go on with another value of this flag; then it may also have begun before there was such a flag.
bool is_changeable(const std::string& flag);
// UsageError if the run began with another value of something that a run cannot change on the way.
void check_same_run(const nlohmann::json& began, const nlohmann::json& now);
// What --help shows below the flags: the values of each preset, side by side.
std::string preset_table(const std::vector<nlohmann::json>& presets);

// The subcommand `train`. S is Settings or derives from it; the first preset is the default. Precedence: the preset, or
// with --resume the run's config.json; then the flags that were given.
template <class S>
void add_training(Word app, Command& chosen, const char* help, std::vector<S> presets, std::function<int(S&)> run) {
  std::vector<std::string> names;
  std::vector<nlohmann::json> values;
  for (S& preset : presets) {
    preset.out = "runs/" + app.text();
    names.push_back(preset.preset);
    values.push_back(to_json(preset));
  }
  const Word command = app.add("train", help, preset_table(values));
  auto settings = std::make_shared<S>(presets[0]);
  command.add_flag("preset", settings->preset, one_of(names), "values for all that is not given");
  command.add_flag("out", settings->out, Allowed(), "the run folder to write");
  command.add_flag("resume", settings->resume, Allowed(), "go on with the run in --out, with its configuration");
  command.add_flag("dry-run", settings->dry_run, Allowed(), "say what the run would take, and write nothing");
  add_flags(command, *settings);

  command.when_parsed([=, &chosen] {
    const std::string preset = settings->preset;
    *settings = *std::find_if(presets.begin(), presets.end(), [&](const S& s) { return s.preset == preset; });
    command.apply_flags();
    if (settings->resume) {
      const nlohmann::json began = read_config(settings->out);
      const auto take = [&](const std::string& key, auto& value) {
        if (is_changeable(key) && !began.contains(key)) return;
        try {
          began.at(key).get_to(value);
        } catch (const nlohmann::json::exception&) {
          fail(settings->out, "/config.json has no usable \"", key, "\": it is not of a run of this program and app");
        }
      };
      take("preset", settings->preset);
      settings->each([&](const std::string& flag, auto& value, const auto&...) { take(flag, value); });
      command.apply_flags();
      check_same_run(began, to_json(*settings));
    }
    chosen = [=] { return settings->prepare(), run(*settings); };
  });
}

}  // namespace runnel
