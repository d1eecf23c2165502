// runnel bench speech: the paper's table 3, error rates and seconds per epoch of four systems that transcribe speech,
// the cost of an update over the length of recordings, and of a second of audio that is transcribed as it comes.
#include "apps/speech/speech.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "apps/bench/sweep.h"
#include "apps/training/updater.h"
#include "datasets/batch.h"
#include "engine/check.h"
#include "engine/memory.h"
#include "models/attention_kinds.h"

namespace runnel {
namespace {

struct SpeechBenchOptions : SweepOptions {
  std::string labels = "phones";
  std::string speaker, data;
  int64_t frames = 0, stream = 0;

  SpeechBenchOptions() { systems = "bilstm,softmax,lsh,linear"; }

  Settings list() override {
    return extended(SweepOptions::list(),
                    {{"systems", &systems, {}, "bilstm and kinds of attention, separated by commas"},
                     {"labels", &labels, one_of({"phones", "words"}), "what digits are spelled with"},
                     {"speaker", &speaker, {}, "as in speech train"},
                     {"data", &data, {}, "as in speech train"},
                     runs_flag(),
                     {"frames", &frames, in_range(0, 1e6),
                      "time updates on recordings of 800, 1600 ... up to so many frames instead; 0: train"},
                     {"stream", &stream, in_range(0, 1e6),
                      "time causal models on so many seconds of audio as it comes instead; 0: train"}});
  }
};

// Table 3: phone error rate on the validation set in per cent, and seconds of an epoch.
struct PublishedSpeech {
  const char* system;
  double error_rate, seconds;
};
constexpr PublishedSpeech table_3[] = {
    {"bilstm", 10.94, 1047}, {"softmax", 5.12, 2711}, {"lsh", 9.33, 2250}, {"linear", 8.08, 824}};

SpeechSettings settings_of(const SpeechBenchOptions& o, const std::string& system, uint64_t seed) {
  SpeechSettings s = speech_preset(o.preset);
  static_cast<RuntimeOptions&>(s) = o;
  s.seed = seed;
  s.data = o.data;
  s.labels = o.labels;
  s.speaker = o.speaker;
  if (system == "bilstm")
    s.model.model = system;
  else
    s.model.encoder.attention.kind = system;
  set_preset_cases(s);
  return s;
}

int train_systems(const SpeechBenchOptions& o, const std::vector<std::string>& systems) {
  Table table(o, "speech-" + o.preset + "-" + o.labels,
              sweep_columns("system", {"parameters", "label_errors", "word_errors", "validation", "s_per_epoch",
                                       "paper_validation", "paper_s_per_epoch"}),
              std::ssize(systems) * o.seeds);
  std::optional<SpeechTaskData> data;  // of this seed, which chooses the strings
  uint64_t seed_of_data = 0;
  std::string folder;
  const auto settings = [&](const std::string& system, uint64_t seed) {
    SpeechSettings s = settings_of(o, system, seed);
    if (!data || seed_of_data != seed) {
      data = load_speech_data(s);
      seed_of_data = seed;
      folder = s.data;
    }
    s.data = folder;
    return s;
  };
  const auto row = [&](const SpeechSettings& s) -> std::vector<std::string> {
    const LoadedTranscriber loaded(s.out, o);
    const auto score_of = [&](const SpeechSet& set) {
      std::vector<int64_t> all = shuffled(set.count(), Key{});
      return score(transcribe(loaded.model, set, all, s.batch, Progress("evaluated")), set, loaded.spelling, 0);
    };
    const SpeechScore test = score_of(data->sets.test), validation = score_of(data->sets.validation);
    const double epoch = static_cast<double>(data->sets.train.first.back()) / trained_rate(s.out);
    const std::string system = s.model.model == "bilstm" ? s.model.model : s.model.encoder.attention.kind;
    const auto paper = std::find_if(std::begin(table_3), std::end(table_3),
                                    [&](const PublishedSpeech& published) { return system == published.system; });
    const bool is_there = paper != std::end(table_3);
    return {std::to_string(element_count(loaded.model.parameters())),
            fmt::format("{:.2f}", test.labels.rate()),
            fmt::format("{:.2f}", test.words.rate()),
            fmt::format("{:.2f}", validation.labels.rate()),
            fmt::format("{:.1f}", epoch),
            is_there ? fmt::format("{:.2f}", paper->error_rate) : "-",
            is_there ? fmt::format("{:.0f}", paper->seconds) : "-"};
  };
  const auto train = [&](SpeechSettings& s) { return train_speech(s, *data); };
  return sweep(o, systems, table, settings, train, row);
}

// Seconds and memory of an update of four recordings over their length.
int time_updates(const SpeechBenchOptions& o, const std::vector<std::string>& systems) {
  constexpr int64_t batch = 4, shortest = 800, symbols = 41;
  const Device device = o.chosen_device();
  Table table(o, "speech-frames", {"system", "frames", "ms", "frames_per_s", "bytes"},
              std::ssize(systems) * (o.frames / shortest));
  for (int64_t frames = shortest; frames <= o.frames; frames += shortest) {
    std::vector<std::string> phones;
    for (int64_t i = 1; i < symbols; ++i) phones.push_back(std::to_string(i));
    SpeechTaskData data{SpeechData{}, Spelling::words(phones), 8000, {}};
    const int64_t numbers = frames * feature_bins;
    const std::vector<float> features = uniform(Shape{batch * numbers}, Key{1}, Device::cpu).to_vector();
    for (int64_t b = 0; b < batch; ++b) {
      std::vector<int32_t> labels;  // eight a second
      for (int64_t i = 0; i < frames * 8 / 100; ++i) labels.push_back(1 + static_cast<int32_t>(i * i % (symbols - 1)));
      data.sets.train.append(
          "", "", labels, std::span(features).subspan(static_cast<size_t>(b * numbers), static_cast<size_t>(numbers)));
    }
    for (const std::string& system : systems) {
      const int64_t live = memory_use(device).live;
      reset_peak(device);
      SpeechSettings s = settings_of(o, system, o.seed);
      s.batch = batch;
      s.length = o.frames;
      const std::unique_ptr<Task> task = speech_training(s, data);
      Updater updater({task->parameters(), authors_options}, device, Key{2},
                      [&](const Slice& slice, Key key) { return task->loss(slice, key); });
      int64_t step = 0;
      const double seconds = median_seconds(o, [&] { updater.update(step++, {task->slice(0, batch)}); });
      table.row({system, std::to_string(frames), fmt::format("{:.1f}", 1000 * seconds),
                 fmt::format("{:.0f}", static_cast<double>(batch * frames) / seconds),
                 std::to_string(memory_use(device).peak - live)});
    }
  }
  table.finish();
  return 0;
}

// A causal model of each kind reads random frames: the cost of a second of audio after so many seconds.
int time_streams(const SpeechBenchOptions& o, const std::vector<std::string>& systems) {
  Table table(o, "speech-stream", {"attention", "after_s", "ms_per_s", "state_bytes"}, std::ssize(systems) * 4);
  for (const std::string& system : systems) {
    check<UsageError>(system != "bilstm", "--stream: the Bi-LSTM reads recordings as a whole");
    SpeechSettings s = settings_of(o, system, o.seed);
    s.model.causal = true;
    s.normalise = "corpus";
    const int64_t frames_per_second = 100 / s.stack;
    s.length = o.stream * frames_per_second * s.stack;
    const Transcriber model(s.model_for(20), key_for(o.seed, Purpose::initialisation), o.chosen_device());
    TranscriberStream stream(model);
    const std::vector<float> frame = uniform(Shape{model.config.bins}, Key{1}, Device::cpu).to_vector();
    for (int64_t part = 1; part <= 4; ++part) {
      const int64_t end = o.stream * part * part / 16;  // seconds
      while (stream.frames() < (end - 1) * frames_per_second) stream.step(frame);
      const auto begin = std::chrono::steady_clock::now();
      const int64_t before = stream.frames();
      while (stream.frames() < end * frames_per_second) stream.step(frame);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      const auto audio = static_cast<double>(stream.frames() - before) / frames_per_second;
      table.row(
          {system, std::to_string(end), fmt::format("{:.2f}", 1000 * seconds / audio), std::to_string(stream.bytes())});
    }
  }
  table.finish();
  return 0;
}

int bench_speech(SpeechBenchOptions& o) {
  Choices known = attention_names(o.stream ? Forms::either : Forms::full);
  known.push_back("bilstm");
  const std::vector<std::string> systems = chosen_words("systems", o.systems, known);
  check<UsageError>(!o.stream || o.stream >= 16, "--stream ", o.stream, ": give 16 seconds or more");
  check<UsageError>(!o.frames || o.frames >= 800, "--frames ", o.frames, ": give 800 or more");
  check<UsageError>(!o.frames || !o.stream, "--frames and --stream are two measurements: give one");
  if (o.frames) return time_updates(o, systems);
  return o.stream ? time_streams(o, systems) : train_systems(o, systems);
}

}  // namespace

void add_speech_bench(Subcommand bench) {
  add_command<SpeechBenchOptions>(
      bench, "speech", "table 3: error rates and seconds per epoch of systems that transcribe speech", bench_speech);
}

}  // namespace runnel
