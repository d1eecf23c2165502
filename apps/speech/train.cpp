// The training of a transcriber by connectionist temporal classification (section 4.3 of the paper).
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "apps/cli/terminal.h"
#include "apps/speech/speech.h"
#include "datasets/batch.h"
#include "datasets/files.h"
#include "datasets/speech/digit_strings.h"
#include "datasets/speech/speech_folder.h"
#include "engine/check.h"
#include "engine/text.h"
#include "models/attention_kinds.h"
#include "models/speech/ctc.h"
#include "ops/elementwise.h"
#include "ops/reductions.h"
#include "ops/speech/ctc_loss.h"

namespace runnel {

Settings SpeechSettings::data_settings() {
  return {
      {"length", &length, in_range(1, 1 << 20), "frames, of 10 ms, of the longest recording; longer ones are left out"},
      {"stack", &stack, in_range(1, 16), "frames of 10 ms that the model reads as one"},
      {"normalise", &normalise, one_of({"utterance", "corpus"}),
       "mean and deviation that features are normalised with: each recording's own, or those of the training set"},
      {"labels", &labels, one_of({"phones", "words"}), "what digits are spelled with; other data say it themselves"},
      {"speaker", &speaker, {}, "speaker of digits who is left out of training and is the test set"},
      {"strings", &strings, in_range(1, 1e6), "strings of digits to train on"},
      {"data",
       &data,
       {},
       "folder with train, validation and test lists (.tsv, .jsonl or Kaldi's), or with the recordings of spoken "
       "digits (FSDD); default: those in the data folder",
       OldFiles::have_it,
       true}};
}

Settings SpeechSettings::list() {
  const Settings own{
      {"augment",
       &augment,
       {},
       "mask two bands of features and two spans of frames of each training sample; --augment=false: do not"},
      {"validation", &validation, in_range(0, 1e9),
       "validation recordings that choose the best checkpoint, drawn once; 0: all", OldFiles::have_it, true},
      {"strict",
       &strict,
       {},
       "recordings that cannot be read, or are too long, are an error, instead of left out",
       OldFiles::have_it,
       true}};
  return extended(extended(ModelSettings::list(), data_settings()), own);
}

TranscriberConfig SpeechSettings::model_for(int64_t symbols) const {
  check<UsageError>(width % model.encoder.heads == 0, "--heads ", model.encoder.heads, " does not divide --width ",
                    width);
  check<UsageError>(width % 2 == 0, "--width ", width,
                    " is odd; half of it are the features, half the positional "
                    "encoding");
  const std::string& kind = model.encoder.attention.kind;
  check<UsageError>(model.model != "transformer" || !model.causal || attention_kind(kind).causal, "--attention ", kind,
                    " has no causal form");
  check<UsageError>(model.model != "transformer" || model.causal || attention_kind(kind).full, "--attention ", kind,
                    " needs --causal: in it no frame sees later ones");
  check<UsageError>(!model.causal || normalise == "corpus",
                    "--causal needs --normalise corpus: a recording's own mean is known at its end only");
  TranscriberConfig config = model;
  config.symbols = symbols;
  config.bins = stack * feature_bins;
  config.max_length = positions();
  return with_encoder(std::move(config), width);
}

namespace {

// Leaves out utterances for which `keep` is false, and says which, and why.
void filter(SpeechSet& set, const std::string& why, const std::function<bool(int64_t)>& keep) {
  SpeechSet kept{.name = set.name, .bins = set.bins};
  std::vector<std::string> removed;
  for (int64_t i = 0; i < set.count(); ++i) {
    const auto n = static_cast<size_t>(i);
    if (keep(i))
      kept.append(set.ids[n], set.texts[n], set.labels[n], set.utterance(i));
    else
      removed.push_back(set.ids[n]);
  }
  if (removed.empty()) return;
  name_left_out(fmt::format("{}: {} recordings are left out: {}", set.name, removed.size(), why), removed, "");
  set = std::move(kept);
}

}  // namespace

SpeechTaskData load_speech_data(SpeechSettings& s) {
  const std::filesystem::path folder = data_directory(s.data);
  const Progress progress("read");
  SpeechTaskData result{SpeechData{}, Spelling::words({"none"}), 8000, {}};
  if (is_speech_folder(folder)) {
    SpeechCorpus corpus = read_speech_folder(folder, s.length, s.strict, cache_directory(), progress);
    result.sets = std::move(corpus.data);
    result.spelling = std::move(corpus.spelling);
    result.rate = corpus.rate;
    if (!corpus.skipped.empty())
      name_left_out(fmt::format("{}: {} recordings are left out", folder.string(), corpus.skipped.size()),
                    corpus.skipped, corpus.cache.empty() ? "" : corpus.cache.string() + ".left-out.txt");
  } else {
    std::vector<std::string> names;
    for (const std::string& line : digit_lexicon) names.push_back(line.substr(0, line.find(' ')));
    result.spelling = s.labels == "phones" ? Spelling::lexicon(digit_lexicon) : Spelling::words(names);
    result.sets = digit_strings(folder, result.spelling,
                                {.train = s.strings, .length = s.length, .seed = s.seed, .held_out = s.speaker},
                                cache_directory(), progress);
  }
  if (!s.data.empty()) s.data = data_for_config(s.data);
  result.statistics = statistics(result.sets.train);
  for (SpeechSet* const set : {&result.sets.train, &result.sets.validation, &result.sets.test}) {
    filter(*set, fmt::format("they have more than --length {} frames", s.length),
           [&](int64_t i) { return set->frames(i) <= s.length; });
    filter(*set, "they have more labels than frames", [&](int64_t i) {
      return fewest_frames(set->labels[static_cast<size_t>(i)]) <= (set->frames(i) + s.stack - 1) / s.stack;
    });
    check(set->count() > 0, set->name, ": no recording is left; give a larger --length or a smaller --stack");
    if (s.normalise == "corpus")
      normalise(set->features, result.statistics);
    else
      for (int64_t i = 0; i < set->count(); ++i)
        normalise({set->features.data() + set->first[static_cast<size_t>(i)] * set->bins,
                   static_cast<size_t>(set->frames(i) * set->bins)},
                  set->bins);
  }
  return result;
}

namespace {

// SpecAugment (Park et al. 2019), without its time warp: bands of up to an eighth of the features, and spans of up to a
// tenth of the frames, become 0, the mean.
void mask(std::span<float> features, int64_t bins, Key key) {
  const int64_t frames = std::ssize(features) / bins;
  uint64_t drawn = 0;
  const auto below = [&](int64_t n) { return n > 0 ? key.below(drawn++, static_cast<uint32_t>(n)) : 0; };
  for (int i = 0; i < 2; ++i) {
    const int64_t wide = below(bins / 8 + 1), band = below(bins - wide + 1);
    const int64_t long_ = below(frames / 10 + 1), begin = below(frames - long_ + 1);
    for (int64_t t = 0; t < frames; ++t) std::fill_n(features.begin() + t * bins + band, wide, 0.0f);
    std::fill_n(features.begin() + begin * bins, long_ * bins, 0.0f);
  }
}

std::vector<int64_t> lengths_of(const SpeechSet& set) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < set.count(); ++i) lengths.push_back(set.frames(i));
  return lengths;
}

std::vector<int64_t> some_utterances(const SpeechSet& set, int64_t most) {
  std::vector<int64_t> all = shuffled(set.count(), Key{});
  if (most && most < set.count()) all.resize(static_cast<size_t>(most));
  return all;
}

struct CtcBatch {
  Tensor features;
  Indices lengths, targets, target_lengths;
  Tensor shares;  // [B], all 1 / the labels of the batch

  auto fields() { return std::tie(features, lengths, targets, target_lengths, shares); }  // all tensors
};

class SpeechTraining : public TaskOf<CtcBatch> {
 public:
  SpeechTraining(const SpeechSettings& settings, const SpeechTaskData& data)
      : settings_(settings),
        data_(data),
        checksum_(checksum(data.sets.train)),
        order_(lengths_of(data.sets.train), settings.batch, key_for(settings.seed, Purpose::training)),
        model_(settings.model_for(std::ssize(data.spelling.symbols())), key_for(settings.seed, Purpose::initialisation),
               settings.chosen_device()) {}

  std::string name() const override { return "speech"; }
  Parameters parameters() const override { return model_.parameters(); }
  nlohmann::json model() const override { return model_json(model_.config); }
  nlohmann::json data() const override {
    nlohmann::json words = nlohmann::json::array();
    for (const Spelling::Word& word : data_.spelling.all_words()) words.push_back({word.text, word.labels});
    return {{"symbols", data_.spelling.symbols()},
            {"words", words},
            {"rate", data_.rate},
            {"mean", data_.statistics.mean},
            {"deviation", data_.statistics.deviation},
            {"checksum", checksum_}};
  }
  int64_t epoch() const override { return data_.sets.train.count(); }
  std::vector<Metric> metrics() const override { return {{"error_rate", Unit::percent}, {"validation", Unit::nats}}; }

  Slice slice(int64_t first, int64_t count) const override {
    std::vector<int64_t> utterances;
    for (int64_t n = first; n < first + count; ++n) utterances.push_back(order_(n));
    SpeechBatch batch = speech_batch(data_.sets.train, utterances, model_.config.max_length, settings_.stack);
    if (settings_.augment)
      for (int64_t b = 0; b < count; ++b) {
        const int64_t row = batch.features.size() / count, bins = data_.sets.train.bins;
        mask({batch.features.data() + b * row,
              static_cast<size_t>(data_.sets.train.frames(utterances[static_cast<size_t>(b)]) * bins)},
             bins, key_for(settings_.seed, Purpose::training).fold(1).fold(static_cast<uint64_t>(first + b)));
      }
    const auto labels = static_cast<float>(std::max<int64_t>(batch.labels, 1));
    return slice_of(CtcBatch{batch.features, batch.lengths, batch.targets, batch.target_lengths,
                             Tensor::full(Shape{count}, 1 / labels, Device::cpu)},
                    static_cast<double>(labels), batch.frames);
  }
  // Nats per label.
  Tensor loss(const CtcBatch& batch, std::optional<Key> key) const override {
    const Tensor logits = model_(batch.features, batch.lengths, key);
    const Tensor each = ctc_loss(logits, batch.lengths, batch.targets, batch.target_lengths, {.zero_infinity = true});
    return sum(multiply(each, batch.shares));
  }
  std::vector<double> validate(const WorkDone& report) const override {
    const SpeechSet& set = data_.sets.validation;
    const SpeechScore found = score(
        transcribe(model_, set, some_utterances(set, settings_.validation), settings_.sequences_at_a_time(), report),
        set, data_.spelling, 0);
    return {found.labels.rate(), found.loss};
  }
  std::string preview_text(const WorkDone& report) const override {
    const SpeechSet& set = data_.sets.validation;
    std::string lines;
    for (const Transcription& one :
         transcribe(model_, set, some_utterances(set, 16), settings_.sequences_at_a_time(), report)) {
      const std::vector<int32_t> labels = labels_of(best_alignment(one.logits, model_.config.symbols));
      lines += fmt::format("said  {}\nheard {}\n", shown(set.texts[static_cast<size_t>(one.utterance)]),
                           shown(data_.spelling.text(labels)));
    }
    return lines;
  }

 private:
  const SpeechSettings& settings_;
  const SpeechTaskData& data_;
  const uint32_t checksum_;
  mutable LengthBuckets order_;
  const Transcriber model_;
};

// paper: 9 layers and 6 heads, RAdam 1e-4; the Bi-LSTM of 3 x 320, Adam 1e-3 (section 4.3 of the paper). The paper does
// not say how wide the layers are: 6 heads of 32, and feed-forward layers four times as wide.
const Presets& presets() {
  static const Presets all{
      {.name = "paper",
       .flags =
           "--batch 16 --steps 100000 --lr 1e-4 --schedule plateau --optimizer radam --weight-decay 0 --clip 0 "
           "--global-clip 10 --width 192 --heads 6 --layers 9 --feed-forward 768 --dropout 0.1 --attention-dropout "
           "0.1 --log-every 20",
       .depends_on = "model",
       .cases = {{"bilstm", "--lr 1e-3 --optimizer adamw --dropout 0"}}},
      {"small",
       "--steps 5000 --augment --lr 2e-3 --stack 4 --warmup 200 --schedule one-cycle --width 128 --heads 4 --layers 4 "
       "--feed-forward 512 --lstm-width 128 --evaluate-every 500 --save-every 500",
       "paper"},
      {"tiny",
       "--lr 3e-3 --stack 4 --warmup 20 --schedule one-cycle --width 64 --heads 4 --layers 2 --feed-forward 128 "
       "--lstm-width 64 --lstm-layers 1 --dropout 0 --labels words --steps 1000 --strings 1000 --validation 50 "
       "--evaluate-every 250 --save-every 250",
       "paper"}};
  return all;
}

}  // namespace

SpeechSettings speech_preset(const std::string& name) { return with_preset(SpeechSettings(), presets(), name); }

void set_preset_cases(SpeechSettings& settings) { set_preset_cases(settings.list(), presets(), settings.preset); }

std::unique_ptr<Task> speech_training(const SpeechSettings& settings, const SpeechTaskData& data) {
  return std::make_unique<SpeechTraining>(settings, data);
}

int train_speech(SpeechSettings& settings, const SpeechTaskData& data) {
  const SpeechSet& set = data.sets.train;
  say(fmt::format("data: {}, {} recordings, {:.2f} h, {} symbols\n", set.name, set.count(),
                  static_cast<double>(set.first.back()) / 360000, data.spelling.symbols().size()));
  return train(*speech_training(settings, data), settings, config_json(settings));
}

void add_speech(Subcommand program) {
  const auto fill = [](Subcommand task) {
    add_training<SpeechSettings>(task, "train a transcriber", {}, presets(), [](SpeechSettings& settings) {
      settings.model_for(2);  // wrong flags are refused before data is read
      return train_speech(settings, load_speech_data(settings));
    });
    add_speech_evaluate(task);
    add_speech_transcribe(task);
  };
  program.add("speech", "recordings of speech, to labels (connectionist temporal classification)", fill);
}

}  // namespace runnel
