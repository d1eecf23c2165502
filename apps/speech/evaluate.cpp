// evaluate: error rates on the test set.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>

#include "apps/cli/terminal.h"
#include "apps/speech/speech.h"
#include "apps/training/communicator.h"
#include "datasets/batch.h"
#include "engine/check.h"
#include "engine/finite_guard.h"
#include "models/settings_text.h"
#include "ops/speech/ctc_loss.h"

namespace runnel {

std::vector<int32_t> labels_of(const std::vector<Spike>& spikes) {
  std::vector<int32_t> labels;
  for (const Spike& spike : spikes) labels.push_back(spike.label);
  return labels;
}

std::vector<Transcription> transcribe(const Transcriber& model, const SpeechSet& set,
                                      const std::vector<int64_t>& utterances, int64_t batch, const WorkDone& report) {
  std::vector<Transcription> all;
  for (const int64_t i : utterances) all.push_back({i, {}});
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return set.frames(utterances[a]) < set.frames(utterances[b]); });
  const Device device = model.device();
  const auto count = std::ssize(order);
  const auto parts = map_over_ranks((count + batch - 1) / batch, [&](int64_t part) {
    const int64_t first = part * batch;
    report(first, count);
    std::vector<int64_t> together;
    for (int64_t i = first; i < std::min<int64_t>(first + batch, count); ++i)
      together.push_back(utterances[order[static_cast<size_t>(i)]]);
    const SpeechBatch in = speech_batch(set, together, model.config.max_length, model.config.bins / set.bins);
    const std::vector<float> logits = finite_output(model(in.features.to(device), in.lengths.to(device)));
    const auto row = std::ssize(logits) / std::ssize(together);
    std::vector<float> numbers;  // without those of the padding
    for (int64_t i = 0; i < std::ssize(together); ++i)
      numbers.insert(numbers.end(), logits.begin() + i * row,
                     logits.begin() + i * row + in.lengths.data()[i] * model.config.symbols);
    return numbers;
  });
  const int64_t stack = model.config.bins / set.bins;
  for (int64_t i = 0, at = 0; i < count; ++i) {
    if (i % batch == 0) at = 0;
    Transcription& one = all[order[static_cast<size_t>(i)]];
    const int64_t positions = std::min((set.frames(one.utterance) + stack - 1) / stack, model.config.max_length);
    const int64_t end = at + positions * model.config.symbols;
    const std::vector<float>& numbers = parts[static_cast<size_t>(i / batch)];
    one.logits.assign(numbers.begin() + at, numbers.begin() + end);
    at = end;
  }
  return all;
}

namespace {

// Words as numbers, for edit_distance.
std::vector<int32_t> numbered(const std::string& text, std::map<std::string, int32_t>& numbers) {
  std::vector<int32_t> words;
  std::istringstream in(text);
  for (std::string word; in >> word;)
    words.push_back(numbers.try_emplace(word, static_cast<int32_t>(numbers.size())).first->second);
  return words;
}

}  // namespace

SpeechScore score(const std::vector<Transcription>& all, const SpeechSet& set, const Spelling& spelling,
                  int64_t beam_width) {
  SpeechScore result;
  std::map<std::string, int32_t> numbers;
  const auto symbols = std::ssize(spelling.symbols());
  for (const Transcription& one : all) {
    const auto n = static_cast<size_t>(one.utterance);
    const std::vector<int32_t> found =
        beam_width ? beam_search(one.logits, symbols, beam_width) : labels_of(best_alignment(one.logits, symbols));
    const std::vector<int32_t>& truth = set.labels[n];
    result.labels += edit_distance(truth, found);
    result.words += edit_distance(numbered(set.texts[n], numbers), numbered(spelling.text(found), numbers));
    const Tensor logits(Shape{1, std::ssize(one.logits) / symbols, symbols}, one.logits);
    const Tensor loss = ctc_loss(logits, {}, Indices(Shape{1, std::ssize(truth)}, truth), {}, {.zero_infinity = true});
    result.loss += static_cast<double>(loss.to_vector()[0]);
  }
  result.loss /= static_cast<double>(std::max<int64_t>(result.labels.reference, 1));
  return result;
}

namespace {

Spelling read_spelling(const Checkpoint& checkpoint) {
  std::vector<Spelling::Word> words;
  for (const auto& word : checkpoint.data.at("words"))
    words.push_back({word.at(0).get<std::string>(), word.at(1).get<std::vector<int32_t>>()});
  return {checkpoint.data.at("symbols").get<std::vector<std::string>>(), words};
}

template <class Read>
auto read_data(const Checkpoint& checkpoint, const Read& read) {
  try {
    return read();
  } catch (const std::exception&) {
    fail(checkpoint.path.string(), " is damaged: it does not say what its symbols and features are");
  }
}

struct SpeechEvaluateOptions : EvaluateOptions {
  int64_t beam = 0;

  SpeechEvaluateOptions() { batch = 16; }
  Settings list() override {
    return extended(EvaluateOptions::list(),
                    {{"beam", &beam, in_range(0, 1e4), "prefixes of the beam search; 0: the best alignment"}});
  }
};

nlohmann::json to_json(const EditDistance& d) {
  return {{"rate_percent", d.rate()},
          {"substitutions", d.substitutions},
          {"deletions", d.deletions},
          {"insertions", d.insertions},
          {"reference", d.reference}};
}

int evaluate_speech(SpeechEvaluateOptions& o) {
  LoadedTranscriber loaded(o.model, o);
  if (!o.data.empty()) loaded.settings.data = o.data;
  const SpeechTaskData data = load_speech_data(loaded.settings);
  check(data.spelling.symbols() == loaded.spelling.symbols(), data.sets.test.name, " has other symbols than ",
        loaded.checkpoint.path.string());
  std::vector<int64_t> all = shuffled(data.sets.test.count(), Key{});
  if (o.limit && o.limit < std::ssize(all)) all.resize(static_cast<size_t>(o.limit));
  const SpeechScore found = score(transcribe(loaded.model, data.sets.test, all, o.batch, Progress("evaluated")),
                                  data.sets.test, loaded.spelling, o.beam);
  if (o.json) {
    print_json({{"model", loaded.checkpoint.path.string()},
                {"step", loaded.checkpoint.step()},
                {"data", data.sets.test.name},
                {"recordings", all.size()},
                {"labels", to_json(found.labels)},
                {"words", to_json(found.words)},
                {"loss_nats_per_label", found.loss}});
    return 0;
  }
  const auto line = [](const char* what, const EditDistance& d) {
    return fmt::format("{:<18} {:6.2f}%  ({} substitutions, {} deletions, {} insertions, {} in the reference)\n", what,
                       d.rate(), d.substitutions, d.deletions, d.insertions, d.reference);
  };
  fmt::print("{} recordings, {}, loss {:.4f} nats per label\n{}{}", all.size(), data.sets.test.name, found.loss,
             line("label error rate", found.labels), line("word error rate", found.words));
  return 0;
}

}  // namespace

LoadedTranscriber::LoadedTranscriber(const std::string& path, const RuntimeOptions& options)
    : checkpoint(trained_model(path, "speech")),
      model(load_model<Transcriber>(checkpoint, options.chosen_device())),
      spelling(read_data(checkpoint, [&] { return read_spelling(checkpoint); })),
      rate(read_data(checkpoint, [&] { return checkpoint.data.at("rate").get<int64_t>(); })),
      statistics(read_data(checkpoint, [&] {
        return FeatureStatistics{checkpoint.data.at("mean").get<std::vector<float>>(),
                                 checkpoint.data.at("deviation").get<std::vector<float>>()};
      })) {
  const std::string file = checkpoint.path.string();
  // The seed chooses the strings of digits.
  const Settings kept = extended(settings.data_settings(), {{"seed", &settings.seed, {}, ""}});
  const std::string problem = checkpoint.config.is_object() ? read_json(kept, checkpoint.config) : "none";
  check(problem.empty(), file, " is damaged: it does not say what it was trained with: ", problem);
  check(std::ssize(spelling.symbols()) == model.config.symbols && model.config.max_length == settings.positions() &&
            model.config.bins == settings.stack * feature_bins && std::ssize(statistics.mean) == feature_bins &&
            std::ssize(statistics.deviation) == feature_bins,
        file, " is damaged: its model is not one of this task");
  const uint64_t seed = settings.seed;
  static_cast<RuntimeOptions&>(settings) = options;
  settings.seed = seed;
}

void add_speech_evaluate(Subcommand task) {
  add_command<SpeechEvaluateOptions>(task, "evaluate", "error rates on the test set", evaluate_speech);
}

}  // namespace runnel
