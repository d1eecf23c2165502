// text evaluate: bits per byte.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "apps/cli/terminal.h"
#include "apps/text/text.h"
#include "datasets/text_file.h"
#include "engine/check.h"
#include "engine/text.h"
#include "models/decoder.h"
#include "ops/losses.h"

namespace runnel {

LoadedTextModel::LoadedTextModel(const ModelOptions& options)
    : checkpoint(trained_model(options.model, "text")),
      model(load_model<AutoregressiveTransformer>(checkpoint, options.chosen_device())),
      carries(checkpoint.config.is_object() && checkpoint.config.value("carry", nlohmann::json()) == "yes") {
  check(checkpoint.config.is_object(), checkpoint.path.string(), " is damaged: it has no settings");
  check(model.config.vocabulary == 256 && model.config.outputs == 256, checkpoint.path.string(),
        " is damaged: it is no model of bytes");
  check(!carries || is_unbounded(model), checkpoint.path.string(), " is damaged: its model cannot carry a state");
}

double mean_nll(const AutoregressiveTransformer& model, const std::vector<uint8_t>& text, bool carries, int64_t length,
                int64_t batch, const WorkDone& report) {
  constexpr int64_t segment = 2048;
  const int64_t predicted = std::ssize(text) - 1;
  if (carries) length = std::min(segment, predicted);
  EncoderMemory memory = carries ? model.encoder.empty_memory(1) : EncoderMemory();
  double total = 0;
  const int64_t whole = predicted / length, at_once = carries ? 1 : batch;
  for (int64_t done = 0; done < predicted;) {
    report(done, predicted);
    const int64_t count = std::min(at_once, whole - done / length);
    const int64_t own = count > 0 ? length : predicted - done;  // the last window may be shorter
    std::vector<int64_t> begins;
    for (int64_t n = 0; n < std::max<int64_t>(count, 1); ++n) begins.push_back(done + n * own);
    const TextBatch windows = text_windows(text, begins, own);
    const Tensor logits =
        model.predictor(model.features(windows.tokens.to(model.device()), {}, carries ? &memory : nullptr));
    const auto bytes = windows.tokens.size();
    total += static_cast<double>(bytes) * cross_entropy(logits, windows.targets.to(model.device())).item();
    done += bytes;
  }
  return total / static_cast<double>(predicted);
}

namespace {

struct TextEvaluateOptions : EvaluateOptions {
  std::string part = "validation";

  Settings list() override {
    return extended(ModelOptions::list(),
                    {{"data", &data, {}, "text file or folder; default: what the model was trained on"},
                     {"part", &part, one_of({"validation", "train", "all"}),
                      "which bytes of it: the last tenth, all before it, or all"},
                     {"limit", &limit, in_range(0, 1e12), "only the first bytes of these; 0: all"},
                     {"batch", &batch, in_range(1, 1 << 20), "windows at a time"},
                     json_flag()});
  }
};

int evaluate_text(TextEvaluateOptions& o) {
  const LoadedTextModel loaded(o);
  const nlohmann::json trained_on = loaded.checkpoint.config.value("data", nlohmann::json());
  check(!o.data.empty() || trained_on.is_string(), loaded.checkpoint.path.string(),
        " does not say on what it was trained; --data names a text");
  const std::string data = o.data.empty() ? trained_on.get<std::string>() : o.data;
  std::vector<uint8_t> bytes;
  if (o.part == "all") {
    bytes = read_text(data);
  } else {
    const Text text = load_text(data, 1);
    if (o.data.empty() && loaded.checkpoint.data.is_object() &&
        loaded.checkpoint.data.value("checksum", nlohmann::json()) != checksum(text))
      warn(fmt::format("runnel: {} has changed since the model was trained\n", shown(data)));
    bytes = o.part == "train" ? text.train : text.validation;
  }
  if (o.limit) bytes.resize(std::min(bytes.size(), static_cast<size_t>(std::max<int64_t>(o.limit, 2))));
  const double nats = mean_nll(loaded.model, bytes, loaded.carries, loaded.model.config.max_length, o.batch,
                               Progress("evaluated byte"));
  check(std::isfinite(nats), loaded.checkpoint.path.string(), ": the model's loss is not finite");
  const double bits = nats / std::numbers::ln2;
  if (o.json)
    print_json({{"model", loaded.checkpoint.path.string()},
                {"step", loaded.checkpoint.step()},
                {"bits_per_byte", bits},
                {"nats_per_byte", nats},
                {"data", data},
                {"part", o.part},
                {"bytes", bytes.size()},
                {"carries_state", loaded.carries}});
  else
    fmt::print(
        "{:.4f} bits/byte, {:.4f} nats, over {} bytes of {} ({}), {}\n", bits, nats, bytes.size(), data, o.part,
        loaded.carries ? "read as one sequence" : fmt::format("in windows of {}", loaded.model.config.max_length));
  return 0;
}

}  // namespace

void add_text_evaluation(Subcommand text) {
  add_command<TextEvaluateOptions>(text, "evaluate", "bits per byte of a text", evaluate_text);
}

}  // namespace runnel
