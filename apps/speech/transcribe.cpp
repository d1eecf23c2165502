// transcribe: recordings, or audio as it comes, to text.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "apps/cli/terminal.h"
#include "apps/plots/pictures.h"
#include "apps/speech/speech.h"
#include "apps/training/interrupt.h"
#include "datasets/speech/audio.h"
#include "datasets/speech/fbank.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/text.h"
#include "ops/reductions.h"

namespace runnel {
namespace {

struct TranscribeOptions : ModelOptions {
  std::string pictures;
  std::vector<std::string> files;
  int64_t beam = 0;
  bool stream = false;

  Settings list() override {
    return extended(
        ModelOptions::list(),
        {{"beam", &beam, in_range(0, 1e4), "prefixes of the beam search for the text; 0: the best alignment"},
         {"stream",
          &stream,
          {},
          "read 16-bit samples, little-endian and mono, from standard input and print labels as they are "
          "said; the model must be causal"},
         {"pictures",
          &pictures,
          {},
          "folder for a plot of each recording, its features and the probabilities of the symbols, and a CSV file of "
          "the same"},
         json_flag()});
  }
};

constexpr const char* csv_heading = "seconds";

std::filesystem::path csv_of(const TranscribeOptions& o, const std::string& file) {
  return std::filesystem::path(o.pictures) / (std::filesystem::path(file).stem().string() + ".csv");
}

std::filesystem::path png_of(std::filesystem::path csv) { return csv.replace_extension(".png"); }

// Throws, before anything is written, if pictures would replace each other, or a file that is not such a one.
void check_pictures(const TranscribeOptions& o) {
  std::filesystem::create_directories(o.pictures);
  std::map<std::string, std::string> taken;
  for (const std::string& file : o.files) {
    const std::string csv = csv_of(o, file).string();
    const auto [other, is_new] = taken.emplace(csv, file);
    check<UsageError>(is_new, "--pictures: ", other->second, " and ", file, " would both be drawn in ", csv,
                      "; transcribe them one after the other, into two folders");
    check_replaceable(csv, "a table of this program", std::string(csv_heading) + ",feature_0,");
    check_png_replaceable(png_of(csv));
  }
}

// A CSV file with a line for each frame, of its features and the probabilities of the symbols, and its plot, in which
// spikes bear their labels.
void write_picture(const std::filesystem::path& file, std::span<const float> features, const Transcription& found,
                   const std::vector<Spike>& spikes, const std::vector<std::string>& symbols, int64_t stack) {
  std::string csv = csv_heading;
  for (int64_t i = 0; i < feature_bins; ++i) csv += fmt::format(",feature_{}", i);
  for (const std::string& symbol : symbols) csv += symbol == "\"" ? ",\"\"\"\"" : ",\"" + symbol + "\"";
  const auto count = std::ssize(symbols);
  const std::vector<float> probabilities =
      softmax(Tensor(Shape{std::ssize(found.logits) / count, count}, found.logits)).to_vector();
  for (int64_t t = 0; t < std::ssize(features) / feature_bins; ++t) {
    csv += fmt::format("\n{:.2f}", frame_seconds * static_cast<double>(t));
    for (const float x : features.subspan(static_cast<size_t>(t * feature_bins), feature_bins))
      csv += fmt::format(",{:.3f}", x);
    for (int64_t k = 0; k < count; ++k)
      csv += fmt::format(",{:.4f}", probabilities[static_cast<size_t>(t / stack * count + k)]);
  }
  write_atomically(file, {csv + "\n"});

  const double seconds = frame_seconds * static_cast<double>(std::ssize(features) / feature_bins);
  std::string commands = fmt::format(
      "set multiplot layout 2,1; unset key; unset colorbox; set lmargin 8; set rmargin 2; set xrange [0:{0}]; "
      "set yrange [-0.5:{1}]; set cbrange [-2:2]; set ylabel 'mel filter'; plot {2} skip 1 matrix every 1:1:1:0:{3} "
      "using ($2*{4}):($1-1):3 with image; set yrange [0:1.25]; set ylabel 'probability'; set xlabel 'seconds'; ",
      seconds, feature_bins - 0.5, data_file(file), feature_bins, frame_seconds);
  for (size_t i = 0; i < spikes.size(); ++i)  // at two heights, since they may be close
    commands += fmt::format("set label {} at {},{} center; ", quoted(symbols[static_cast<size_t>(spikes[i].label)]),
                            frame_seconds * (static_cast<double>(spikes[i].frame) + 0.5) * static_cast<double>(stack),
                            i % 2 ? 1.17 : 1.06);
  commands += fmt::format("plot for [k={}:{}] {} skip 1 using 1:k with lines lw 2", feature_bins + 3,
                          feature_bins + 1 + count, data_file(file));
  plot(png_of(file), commands, static_cast<int>(std::clamp(300 * seconds, 600.0, 4000.0)), 560);
}

// The features of a recording as the model reads them.
SpeechSet features_of(const std::string& file, const LoadedTranscriber& loaded, const Fbank& fbank) {
  const Audio audio = read_audio(file, loaded.settings.length);
  check(audio.rate == loaded.rate, file, ": ", audio.rate, " samples per second; the model was trained on ",
        loaded.rate);
  std::vector<float> features = fbank(audio.samples);
  if (loaded.settings.normalise == "corpus")
    normalise(features, loaded.statistics);
  else
    normalise(features, feature_bins);
  SpeechSet set{.name = file, .bins = feature_bins};
  set.append(file, "", {}, features);
  return set;
}

// Goes on after a recording that cannot be read; the exit status is 1 then.
int transcribe_files(const TranscribeOptions& o, const LoadedTranscriber& loaded) {
  const Fbank fbank({.rate = loaded.rate, .bins = feature_bins});
  const int64_t stack = loaded.settings.stack, symbols = loaded.model.config.symbols;
  nlohmann::json all = nlohmann::json::array();
  size_t failed = 0;
  for (const std::string& file : o.files) {
    SpeechSet set;
    try {
      set = features_of(file, loaded, fbank);
    } catch (const Error& error) {
      warn(fmt::format("runnel: {}\n", error.what()));
      all.push_back({{"file", file}, {"error", error.what()}});
      ++failed;
      continue;
    }
    const Transcription found = transcribe(loaded.model, set, {0}, 1, Progress("transcribed"))[0];
    const std::vector<Spike> spikes = best_alignment(found.logits, symbols);
    const double sure = confidence(spikes, found.logits, symbols);
    const std::string text =
        loaded.spelling.text(o.beam ? beam_search(found.logits, symbols, o.beam) : labels_of(spikes));
    std::string line;
    nlohmann::json labels = nlohmann::json::array();
    for (const Spike& spike : spikes) {
      const std::string& symbol = loaded.spelling.symbols()[static_cast<size_t>(spike.label)];
      const double seconds = frame_seconds * static_cast<double>(spike.frame * stack);
      line += fmt::format("  {:.2f} {}", seconds, symbol);
      labels.push_back({{"label", symbol}, {"seconds", seconds}, {"probability", spike.probability}});
    }
    if (!o.pictures.empty())
      write_picture(csv_of(o, file), set.utterance(0), found, spikes, loaded.spelling.symbols(), stack);
    if (!o.json) fmt::print("{}: {}  (confidence {:.3f})\n{}\n", shown(file), shown(text), sure, shown(line));
    all.push_back({{"file", file}, {"text", text}, {"confidence", sure}, {"labels", labels}});
  }
  if (o.json) print_json({{"model", loaded.checkpoint.path.string()}, {"recordings", all}});
  if (failed && o.files.size() > 1)
    warn(fmt::format("runnel: {} of {} recordings could not be transcribed\n", failed, o.files.size()));
  return failed ? 1 : 0;
}

// Reads standard input, without waiting for more than the first bytes: up to `size`; 0 at its end, and after Ctrl-C.
size_t read_input(unsigned char* bytes, size_t size) {
  while (!is_interrupted()) {
    constexpr int milliseconds = 100;  // until it is asked again whether Ctrl-C was pressed
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, milliseconds) <= 0) continue;
    const ssize_t count = read(STDIN_FILENO, bytes, size);
    if (count >= 0) return static_cast<size_t>(count);
    check(errno == EINTR || errno == EAGAIN, "standard input cannot be read: ", std::strerror(errno));
  }
  return 0;
}

// Prints each label when it begins, with its time; where the model has no further positions, it begins anew.
int transcribe_stream(const LoadedTranscriber& loaded) {
  const InterruptGuard guard;
  const Fbank fbank({.rate = loaded.rate, .bins = feature_bins});
  const int64_t stack = loaded.settings.stack;
  const auto bins = static_cast<size_t>(stack * feature_bins);  // of one stacked frame
  FeatureStream rows(fbank, loaded.statistics, stack);
  std::optional<TranscriberStream> stream(std::in_place, loaded.model);
  std::vector<int32_t> labels;
  int32_t before = 0;
  int64_t frames = 0;
  const auto finish = [&] {
    fmt::print("text: {}\n", shown(loaded.spelling.text(labels)));
    labels.clear();
  };
  const auto hear = [&](std::span<const float> features) {
    for (; !features.empty(); features = features.subspan(bins), ++frames) {
      if (stream->frames() == loaded.model.config.max_length) {
        finish();
        stream.emplace(loaded.model);
      }
      const std::vector<float> logits = stream->step(features.first(bins));
      const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      if (best != 0 && best != before) {
        labels.push_back(best);
        fmt::print("{:.2f} {}\n", frame_seconds * static_cast<double>(frames * stack),
                   shown(loaded.spelling.symbols()[static_cast<size_t>(best)]));
        std::fflush(stdout);
      }
      before = best;
    }
  };
  unsigned char bytes[4096];
  size_t left = 0;  // of a sample that came in two parts
  for (size_t count; (count = read_input(bytes + left, sizeof bytes - left)) > 0;) {
    count += left;
    std::vector<float> samples;
    for (size_t i = 0; i + 1 < count; i += 2)
      samples.push_back(static_cast<int16_t>(static_cast<uint16_t>(bytes[i] | bytes[i + 1] << 8)));
    left = count % 2;
    if (left) bytes[0] = bytes[count - 1];
    hear(rows.next(samples));
  }
  hear(rows.last());
  finish();
  return is_interrupted() ? 130 : 0;
}

int transcribe_all(TranscribeOptions& o) {
  check<UsageError>(o.stream == o.files.empty(),
                    o.stream ? "--stream reads standard input: give it no files" : "give recordings, or --stream");
  check<UsageError>(!o.stream || (!o.json && !o.beam && o.pictures.empty()),
                    "--stream goes with none of --json, --beam and --pictures");
  if (!o.pictures.empty()) check_pictures(o);
  const LoadedTranscriber loaded(o.model, o);
  return o.stream ? transcribe_stream(loaded) : transcribe_files(o, loaded);
}

}  // namespace

void add_speech_transcribe(Subcommand task) {
  const auto fill = [](Subcommand command) {
    const auto options = std::make_shared<TranscribeOptions>();
    command.add_flags([options] { return extended(options->list(), {options->quiet_flag()}); });
    command.add_words("FILE", options->files, "recordings: WAV, FLAC, Ogg", 1 << 20);
    command.when_parsed([=]() -> Command {
      return [=] {
        if (options->json) print_text_to_stderr();
        options->prepare();
        return transcribe_all(*options);
      };
    });
  };
  task.add("transcribe", "text and labels of recordings, or of audio as it comes", fill);
}

}  // namespace runnel
