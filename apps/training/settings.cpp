#include "apps/training/settings.h"

#include <bit>
#include <cmath>
#include <numeric>

#include "apps/training/communicator.h"
#include "datasets/files.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/host.h"
#include "engine/memory.h"
#include "engine/text.h"
#include "models/config_settings.h"
#include "models/json.h"
#include "models/settings_text.h"

namespace runnel {
namespace {

constexpr bool can_change_on_resume = true;
constexpr uint64_t max_config_bytes = 1 << 20;

}  // namespace

int64_t default_part(int64_t batch, Device device, int64_t most) {
  const bool is_alone_on_gpu = device == Device::cuda && processes().size() == 1;
  return is_alone_on_gpu ? batch : batch / std::gcd(batch, most);
}

int64_t TrainSettings::sequences_at_a_time() const {
  const int64_t count = processes().size();
  // Older versions have not said in config.json how their runs divided a batch: into eight.
  const int64_t wanted = resume ? 8 : std::max<int64_t>(8, count);
  const int64_t part = micro_batch ? std::min(micro_batch, batch) : default_part(batch, chosen_device(), wanted);
  const int64_t parts = (batch + part - 1) / part;
  const bool is_even = batch % part == 0 && std::has_single_bit(static_cast<uint64_t>(parts));
  if (count == 1 || (is_even && parts % count == 0)) return part;
  std::string fitting = "1";
  for (int64_t fits = 2; is_even && fits <= parts; fits *= 2) fitting += ", " + std::to_string(fits);
  fail<UsageError>("--batch ", batch, " in parts of --micro-batch ", part, " cannot be divided among ", count,
                   " processes, but among ", fitting,
                   ": the parts must be of one size, their number a power of two, and each process must have as many");
}

SumOptions sum_options(const std::string& reduction, const std::string& gradients) {
  check<UsageError>(reduction == "exact" || gradients == "f32",
                    "--reduction fast and --gradients bf16: only exact sums are rounded to bfloat16; give one of them");
  return {.any_order = reduction == "fast", .bf16 = gradients == "bf16"};
}

Settings TrainSettings::list() {
  const Settings main{
      {"batch", &batch, in_range(1, 1 << 20), "sequences per update"},
      {"steps", &steps, in_range(1), "updates", OldFiles::have_it, can_change_on_resume},
      {"minutes", &minutes, in_range(0, 1e6), "stop after this many minutes of training in all; 0: no limit",
       OldFiles::may_lack_it, can_change_on_resume},
      {"lr", &lr, in_range(0, 100), "learning rate"},
      {"schedule", &schedule, one_of({"constant", "step", "quadratic", "one-cycle", "cosine", "rsqrt", "plateau"}),
       "learning rate schedule: constant; step: a tenth after --lr-step updates; quadratic: times the square of the "
       "part of the run that is left; one-cycle: linearly down to 0 from the end of the warm-up on; cosine: the same "
       "along half a cosine; rsqrt: times the root of --warmup over the updates made; plateau: halved after "
       "--patience validations without a better one"},
      {"optimizer", &optimizer, one_of({"radam", "adamw", "muon"}),
       "radam: rectified Adam; adamw: Adam with decoupled weight decay; muon: Muon, on gradients scaled to norm 1, "
       "for the value, output and feed-forward matrices, RAdam for the "
       "rest"},
      {"evaluate-every", &evaluate_every, in_range(1), "updates between validations and previews", OldFiles::have_it,
       can_change_on_resume}};
  const Settings details{
      {"micro-batch", &micro_batch, in_range(0, 1 << 20),
       "sequences of a part of the batch, whose gradients are computed at a time (gradient accumulation); threads and "
       "processes share the parts; 0: an eighth of --batch, or a quarter or a half, if it can be divided; a part for "
       "each of more than eight processes; on one GPU all; kept on resume",
       OldFiles::may_lack_it, can_change_on_resume},
      {"reduction", &reduction, one_of({"exact", "fast"}),
       "sums of gradients over processes: exact: the same bytes for any number of processes; fast: in the order that "
       "MPI or NCCL chooses",
       OldFiles::may_lack_it, can_change_on_resume},
      {"gradients", &gradients, one_of({"f32", "bf16"}),
       "bf16: sums of gradients are rounded to bfloat16, which halves what processes send", OldFiles::may_lack_it,
       can_change_on_resume},
      {"shard",
       &shard,
       {},
       "divide the optimizer's moments over the processes (ZeRO stage 1): less memory for each",
       OldFiles::may_lack_it,
       can_change_on_resume},
      {"warmup", &warmup, in_range(0, 1e9), "updates over which the learning rate first rises linearly from 0",
       OldFiles::may_lack_it},
      {"lr-step", &lr_step, in_range(1), "updates before the learning rate drops (--schedule step)"},
      {"patience", &patience, in_range(1, 1e6),
       "validations in a row without a better one before the learning rate is halved (--schedule plateau)",
       OldFiles::may_lack_it},
      {"beta2", &beta2, in_range(0.9, 0.9999), "decay of Adam's mean of squared gradients"},
      {"adam-eps", &adam_eps, in_range(1e-16, 1), "added to the root of Adam's mean of squared gradients",
       OldFiles::may_lack_it},
      {"weight-decay", &weight_decay, in_range(0, 1),
       "decoupled weight decay of the parameters that Adam or RAdam updates"},
      {"muon-decay", &muon_decay, in_range(0, 100), "decoupled weight decay of the matrices that Muon updates",
       OldFiles::may_lack_it},
      {"clip", &clip, in_range(0, 1e9), "largest gradient norm of each parameter tensor; 0: any"},
      {"global-clip", &global_clip, in_range(0, 1e9), "largest norm of all gradients together; 0: any"},
      {"log-every", &log_every, in_range(1), "updates per row of metrics.csv", OldFiles::have_it, can_change_on_resume},
      {"save-every", &save_every, in_range(1), "updates between checkpoints", OldFiles::have_it, can_change_on_resume}};
  return extended(extended(RuntimeOptions::list(), main), with_topic("training", details));
}

void TrainSettings::adapt_to(const nlohmann::json& config) {
  if (!config.contains("adam-eps")) adam_eps = TrainSettings().adam_eps;  // not the preset's
}

nlohmann::json config_json(TrainSettings& settings) {
  nlohmann::json json = to_json(settings.list());
  json["preset"] = settings.preset;
  return json;
}

nlohmann::json read_config(const std::filesystem::path& run_folder) {
  const std::filesystem::path path = run_folder / "config.json";
  std::error_code error;
  check(std::filesystem::exists(path, error), "there is no run to resume: there is no file ", path.string());
  const nlohmann::json config = parse_json(read_file(path, max_config_bytes));
  check(config.is_object(), path.string(), " is damaged: not a JSON object");
  return config;
}

nlohmann::json read_settings_file(const std::filesystem::path& path) {
  nlohmann::json values = parse_json(read_file(path, max_config_bytes));
  check(values.is_object(), "--config: ", path.string(), " is not a JSON object of settings");
  return values;
}

void apply_settings_file(TrainSettings& settings, const nlohmann::json& values, const std::string& path) {
  const Settings all = extended(settings.list(), {{"preset", &settings.preset, {}, ""}});
  for (const auto& [name, value] : values.items()) {
    const auto is_called = [&, &wanted = name](const Setting& setting) { return setting.name == wanted; };
    const auto found = std::find_if(all.begin(), all.end(), is_called);
    check(found != all.end(), path, ": \"", excerpt(name), "\" is no setting of this command");
    const std::string problem = read_json({*found}, values);
    check(problem.empty(), path, ": ", problem);
  }
}

void take_over(TrainSettings& settings, const nlohmann::json& began) {
  const Settings all = extended(settings.list(), {{"preset", &settings.preset, {}, ""}});
  const std::string problem = read_json(all, began);
  check(problem.empty(), settings.out, "/config.json has no usable settings of this task: ", problem);
  settings.adapt_to(began);
}

void check_same_run(const nlohmann::json& began, TrainSettings& now) {
  for (const Setting& setting : now.list()) {
    if (setting.can_change_on_resume || !began.contains(setting.name)) continue;
    const nlohmann::json value = to_json({setting})[setting.name];
    check<UsageError>(began[setting.name] == value, "--", setting.name, " ", value.dump(),
                      ": the run to resume began with ", began[setting.name].dump(), " and cannot change it");
  }
}

std::string data_for_config(const std::string& data) {
  const std::string path = std::filesystem::absolute(data_directory(data)).lexically_normal().string();
  check<UsageError>(is_utf8(path), "the path of the data is not valid UTF-8, as config.json must be: ", path);
  return path;
}

void set_run(TrainSettings& settings, const std::filesystem::path& folder) {
  settings.out = folder.string();
  settings.resume = std::filesystem::exists(folder / "last.safetensors");
  settings.overwrite = !settings.resume;
  if (settings.resume) check_same_run(read_config(settings.out), settings);
}

}  // namespace runnel
