// text train. With --carry yes, each place of the batch is a reader of its own, which goes through its part of the
// text, segment after segment, and keeps its attention's state: truncated backpropagation through time. In the next
// epoch all begin again, with an empty state, at other places. Else windows come from anywhere in the text.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/cli/terminal.h"
#include "apps/tasks/tasks.h"
#include "apps/text/text.h"
#include "datasets/text_file.h"
#include "engine/check.h"
#include "engine/text.h"
#include "ops/elementwise.h"
#include "ops/losses.h"
#include "ops/shapes.h"

namespace runnel {

Settings TextSettings::list() {
  return extended(
      TransformerSettings::list(),
      {{"length", &length, in_range(2, 1 << 20), "bytes of a window, or with --carry yes of a segment"},
       {"carry", &carry, one_of({"yes", "no"}),
        "segments follow each other in the text, and the attention's state goes from one to the next, so the context "
        "is longer than a segment. For linear, retention, gla, deltanet, gated-deltanet and kda, with --positions "
        "none"},
       {"norm", &model.encoder.norm, one_of({"pre", "post"}), "layer normalisation before each block, or after it"},
       {"positions", &model.positions, one_of({"sinusoidal", "learned", "none"}),
        "of bytes in a window: sinusoids beside the embedding, learned vectors added to it, or none"},
       {"gelu", &model.encoder.gelu, {}, "GELU instead of ReLU in the feed-forward layers"},
       {"tied", &model.tied, {}, "the predictor's weights are those of the embedding; not with sinusoidal positions"},
       {"data",
        &data,
        {},
        "text file, or folder of files, of any encoding; its last tenth is for validation",
        OldFiles::have_it,
        true}});
}

namespace {

constexpr int64_t most_validated = 1 << 18;  // bytes: each validation reads them

class TextTraining : public Task {
 public:
  TextTraining(const TextSettings& settings, Text text)
      : settings_(settings),
        text_(std::move(text)),
        checksum_(checksum(text_)),
        model_(settings.model_for_bytes(), key_for(settings.seed, Purpose::initialisation), settings.chosen_device()) {
    if (settings.carries()) memory_ = model_.encoder.empty_memory(settings.batch);
  }

  std::string name() const override { return "text"; }
  Parameters parameters() const override { return model_.parameters(); }
  nlohmann::json model() const override { return model_json(model_.config); }
  nlohmann::json data() const override { return {{"checksum", checksum_}}; }
  int64_t epoch() const override { return std::ssize(text_.train) / settings_.length; }  // as many bytes as there are
  Unit loss_unit() const override { return Unit::bits_per_byte; }
  std::vector<Metric> metrics() const override { return {{"validation", Unit::bits_per_byte}}; }

  Parameters carried() const override {
    Parameters all;
    for (size_t n = 0; n < memory_.size(); ++n)
      for (size_t i = 0; i < memory_[n].size(); ++i) all.push_back({fmt::format("memory.{}.{}", n, i), memory_[n][i]});
    return all;
  }

  Slice slice(int64_t first, int64_t count) const override {
    const Key key = key_for(settings_.seed, Purpose::training);
    const auto size = std::ssize(text_.train);
    const int64_t batch = settings_.batch, step = first / batch, row = first % batch;
    const int64_t segments = std::max<int64_t>(1, size / (batch * settings_.length));  // of a reader in an epoch
    const int64_t segment = step % segments;
    const auto begin_of = [&](int64_t n) -> int64_t {
      const auto random = [&](int64_t i) {  // below `size`
        const Philox bits = key.block(static_cast<uint64_t>(i));
        return static_cast<int64_t>((bits[0] | uint64_t{bits[1]} << 32) % static_cast<uint64_t>(size));
      };
      if (!settings_.carries()) return random(n);
      return random(step / segments) + n % batch * size / batch + segment * settings_.length;
    };
    std::vector<int64_t> begins;
    for (int64_t n = first; n < first + count; ++n) begins.push_back(begin_of(n));
    const TextBatch windows = text_windows(text_.train, begins, settings_.length, segment > 0);
    Slice slice = slice_of(windows, static_cast<double>(count), windows.tokens.size());
    slice.first_row = row;
    return slice;
  }

  Tensor loss(const Slice& slice, std::optional<Key> key) const override {
    const TextBatch batch = batch_of<TextBatch>(slice);
    if (!settings_.carries()) return cross_entropy(model_(batch.tokens, key), batch.targets);
    EncoderMemory memory;
    for (size_t n = 0; n < memory_.size(); ++n) {
      std::vector<Tensor>& layer = memory.emplace_back();
      for (const Tensor& all : memory_[n]) {
        const Tensor before = rows(all, slice.first_row, batch.kept.size());
        std::vector<int64_t> column(static_cast<size_t>(before.shape().rank()), 1);
        column[0] = batch.kept.size();
        layer.push_back(multiply(before, reshape(batch.kept, Shape(column))));
      }
    }
    const Tensor loss = cross_entropy(model_.predictor(model_.features(batch.tokens, key, &memory)), batch.targets);
    for (size_t n = 0; n < memory_.size(); ++n)
      for (size_t i = 0; i < memory_[n].size(); ++i) {
        Tensor own = rows(memory_[n][i], slice.first_row, batch.kept.size());
        assign(own, memory[n][i]);
      }
    return loss;
  }

  std::vector<double> validate(const WorkDone& report) const override {
    const auto first = text_.validation.begin();
    const std::vector<uint8_t> some(first, first + std::min<int64_t>(most_validated, std::ssize(text_.validation)));
    return {mean_nll(model_, some, settings_.carries(), settings_.length, settings_.batch, report)};
  }

  // The beginning of the validation text, and behind a line how the model goes on.
  std::string preview_text(const WorkDone& report) const override {
    constexpr int64_t drawn = 400;
    const std::string prompt(text_.validation.begin(),
                             text_.validation.begin() + std::min<int64_t>(100, settings_.length / 2));
    std::string text = prompt + "|";
    int64_t left = drawn;
    continue_text(model_, prompt, {}, key_for(settings_.seed, Purpose::sampling), [&](uint8_t byte) {
      text += static_cast<char>(byte);
      report(drawn - left, drawn);
      return --left > 0;
    });
    return shown(text, Lines::kept) + "\n";
  }

 private:
  // `count` sequences of a tensor that has one for each place of the batch: a view.
  static Tensor rows(const Tensor& all, int64_t first, int64_t count) {
    return all.part(first * all.shape().without_first().size(), all.shape().with_first(count));
  }

  const TextSettings& settings_;
  const Text text_;
  const uint32_t checksum_;
  const AutoregressiveTransformer model_;
  EncoderMemory memory_;  // of each place of the batch
};

int train_text(TextSettings& s) {
  check<UsageError>(!s.data.empty(),
                    "--data is needed: a text file, or a folder of them; datasets/download.sh "
                    "shakespeare fetches one");
  check<UsageError>(!s.carries() || s.model.positions == "none", "--carry yes needs --positions none, not ",
                    s.model.positions);
  check<UsageError>(!s.carries() || !s.recompute, "--carry yes and --recompute do not go together");
  check<UsageError>(!s.carries() || processes().size() == 1,
                    "--carry yes is for one process: a reader's state is not shared");
  check<UsageError>(!s.model.tied || s.model.positions != "sinusoidal",
                    "--tied needs --positions learned or none: sinusoidal ones are half of the width");
  const AutoregressiveConfig config = s.model_for_bytes();  // what the flags get wrong comes before reading the data
  if (s.carries())
    check<UsageError>(!make_attention(config.encoder.attention, {config.encoder.heads, config.encoder.head_dim, true},
                                      {}, Device::cpu)
                           ->empty_memory(1, Device::cpu)
                           .empty(),
                      "--carry yes: ", config.encoder.attention.kind, " attention keeps no state of constant size");
  s.data = data_for_config(s.data);
  Text text = load_text(s.data, s.length);
  check<UsageError>(!s.carries() || std::ssize(text.train) >= 2 * s.batch * s.length,
                    "--carry yes: ", text.train.size(), " bytes are too few for --batch ", s.batch,
                    " readers of two segments of --length ", s.length);
  say(fmt::format("data: {}, {} bytes; {} more choose the best checkpoint\n", shown(text.name), text.train.size(),
                  std::min<int64_t>(most_validated, std::ssize(text.validation))));
  return train(TextTraining(s, std::move(text)), s, config_json(s));
}

// docs/text.md has what tiny reaches; small is a larger model with its settings. nanogpt and nanogpt-cpu: the models
// and trainings of nanoGPT's examples on the same text (github.com/karpathy/nanoGPT).
const Presets& text_presets() {
  // Without positions, a kind without gates that depend on the input finds its neighbours by a convolution only.
  static const std::string gated = "--positions none --carry yes", other = "--positions learned --carry no",
                           ungated = gated + " --convolution 4";
  static const std::vector<std::pair<std::string, std::string>> by_kind{
      {"linear", ungated}, {"retention", ungated},    {"gla", gated}, {"deltanet", gated},
      {"kda", gated},      {"gated-deltanet", gated}, {"", other}};
  static const Presets all{
      {"small",
       "--minutes 60 --steps 1000000 --attention gated-deltanet --length 256 --layers 6 --width 256 --heads 4 "
       "--feed-forward 768 --dropout 0.1 --norm pre --batch 16 --optimizer muon --lr 2e-3 --schedule quadratic "
       "--weight-decay 0 --beta2 0.98 --clip 0.1 --evaluate-every 500 --save-every 500",
       "", "attention", by_kind},
      {"tiny", "--minutes 3 --layers 4 --width 128 --feed-forward 384 --dropout 0 --length 128 --lr 3e-3", "small",
       "attention", by_kind},
      {"nanogpt",
       "--steps 5000 --attention softmax --length 256 --layers 6 --width 384 --heads 6 --feed-forward 1536 --gelu "
       "--dropout 0.2 --attention-dropout 0.2 --embedding-dropout 0.2 --norm pre --positions learned --tied --batch 64 "
       "--optimizer adamw --lr 1e-3 --warmup 100 --schedule cosine --weight-decay 0.1 --beta2 0.99 --clip 0 "
       "--global-clip 1 --evaluate-every 250 --save-every 250"},
      {"nanogpt-cpu",
       "--steps 2000 --length 64 --layers 4 --width 128 --heads 4 --feed-forward 512 --dropout 0 --attention-dropout 0 "
       "--embedding-dropout 0 --batch 12",
       "nanogpt"}};
  return all;
}

}  // namespace

void add_text_training(Subcommand text) {
  add_training<TextSettings>(text, "train a model on a text", {}, text_presets(), train_text);
}

void add_text(Subcommand program) {
  program.add("text", "a language model of bytes, trained on a text of your own", [](Subcommand text) {
    add_text_training(text);
    add_text_evaluation(text);
    add_text_generation(text);
  });
}

}  // namespace runnel
