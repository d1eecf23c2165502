// transcribe: what is said in recordings, or in audio as it comes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "apps/cli/terminal.h"
#include "apps/plots/pictures.h"
#include "apps/speech/speech.h"
#include "datasets/audio.h"
#include "datasets/fbank.h"
#include "engine/check.h"
#include "engine/file.h"

namespace runnel {
namespace {

struct TranscribeOptions : RuntimeOptions {
  std::string model, pictures;
  std::vector<std::string> files;
  int64_t beam = 0;
  bool stream = false;

  Settings list() override {
    return extended(
        RuntimeOptions::list(),
        {{"model", &model, {}, "a run folder or a .safetensors file"},
         {"beam", &beam, in_range(0, 1e4), "prefixes of the beam search for the text; 0: the best alignment"},
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

// A CSV file with a line for each frame, of its features and the probabilities of the symbols, and its plot, in which
// spikes bear their labels.
void write_picture(const std::filesystem::path& stem, std::span<const float> features, const Transcription& found,
                   const std::vector<Spike>& spikes, const std::vector<std::string>& symbols, int64_t stack) {
  std::string csv = "seconds";
  for (int64_t i = 0; i < feature_bins; ++i) csv += fmt::format(",feature_{}", i);
  for (const std::string& symbol : symbols) csv += symbol == "\"" ? ",\"\"\"\"" : ",\"" + symbol + "\"";
  const auto count = std::ssize(symbols);
  for (int64_t t = 0; t < std::ssize(features) / feature_bins; ++t) {
    csv += fmt::format("\n{:.2f}", frame_seconds * static_cast<double>(t));
    for (const float x : features.subspan(static_cast<size_t>(t * feature_bins), feature_bins))
      csv += fmt::format(",{:.3f}", x);
    const float* const z = found.logits.data() + t / stack * count;
    for (int64_t k = 0; k < count; ++k) {
      double sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(z[i] - z[k]));
      csv += fmt::format(",{:.4f}", 1 / sum);
    }
  }
  const std::filesystem::path file = stem.string() + ".csv";
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
  plot(stem.string() + ".png", commands, static_cast<int>(std::clamp(300 * seconds, 600.0, 4000.0)), 560);
}

// The geometric mean of the labels' probabilities; 1 if there are none.
double confidence(const std::vector<Spike>& spikes) {
  double sum = 0;
  for (const Spike& spike : spikes) sum += std::log(spike.probability);
  return spikes.empty() ? 1 : std::exp(sum / static_cast<double>(spikes.size()));
}

int transcribe_files(const TranscribeOptions& o, const LoadedTranscriber& loaded) {
  const Fbank fbank({.rate = loaded.rate, .bins = feature_bins});
  const int64_t stack = loaded.settings.stack, symbols = loaded.model.config.symbols;
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& file : o.files) {
    const Audio audio = read_audio(file);
    check(audio.rate == loaded.rate, file, ": ", audio.rate, " samples per second; the model was trained on ",
          loaded.rate);
    SpeechSet set{.name = file, .bins = feature_bins};
    std::vector<float> features = fbank(audio.samples);
    check(!features.empty(), file, ": shorter than a frame of 25 ms");
    if (loaded.settings.normalise == "corpus")
      normalise(features, loaded.statistics);
    else
      normalise(features, feature_bins);
    set.append(file, "", {}, features);
    check(set.frames(0) <= loaded.settings.length, file, ": ", set.frames(0),
          " frames of 10 ms; the model's --length is ", loaded.settings.length);
    const Transcription found = transcribe(loaded.model, set, {0}, 1, Progress("transcribed"))[0];
    const std::vector<Spike> spikes = best_alignment(found.logits, symbols);
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
    if (!o.pictures.empty()) {
      std::filesystem::create_directories(o.pictures);
      write_picture(std::filesystem::path(o.pictures) / std::filesystem::path(file).stem(), features, found, spikes,
                    loaded.spelling.symbols(), stack);
    }
    if (!o.json) fmt::print("{}: {}  (confidence {:.3f})\n{}\n", file, text, confidence(spikes), line);
    all.push_back({{"file", file}, {"text", text}, {"confidence", confidence(spikes)}, {"labels", labels}});
  }
  if (o.json) print_json({{"model", loaded.checkpoint.path.string()}, {"recordings", all}});
  return 0;
}

// Prints each label when it begins, with its time; where the model has no further positions, it begins anew.
int transcribe_stream(const LoadedTranscriber& loaded) {
  const Fbank fbank({.rate = loaded.rate, .bins = feature_bins});
  const int64_t stack = loaded.settings.stack;
  const auto bins = static_cast<size_t>(stack * feature_bins);  // of what the model reads at once
  std::optional<TranscriberStream> stream(std::in_place, loaded.model);
  std::vector<float> samples;
  std::vector<int32_t> labels;
  int32_t before = 0;
  int64_t frames = 0;
  const auto finish = [&] {
    fmt::print("text: {}\n", loaded.spelling.text(labels));
    labels.clear();
  };
  unsigned char bytes[4096];
  size_t left = 0;  // of a sample that came in two parts
  for (size_t count; (count = std::fread(bytes + left, 1, sizeof bytes - left, stdin)) > 0;) {
    count += left;
    for (size_t i = 0; i + 1 < count; i += 2)
      samples.push_back(static_cast<int16_t>(static_cast<uint16_t>(bytes[i] | bytes[i + 1] << 8)));
    left = count % 2;
    if (left) bytes[0] = bytes[count - 1];
    std::vector<float> features = fbank(samples);
    normalise(features, loaded.statistics);
    const size_t rows = features.size() / bins;
    samples.erase(samples.begin(), samples.begin() + static_cast<int64_t>(rows) * stack * fbank.shift());
    for (size_t row = 0; row < rows; ++row, ++frames) {
      if (stream->frames() == loaded.model.config.max_length) {
        finish();
        stream.emplace(loaded.model);
      }
      const std::vector<float> logits = stream->step(std::span(features).subspan(row * bins, bins));
      const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      if (best != 0 && best != before) {
        labels.push_back(best);
        fmt::print("{:.2f} {}\n", frame_seconds * static_cast<double>(frames * stack),
                   loaded.spelling.symbols()[static_cast<size_t>(best)]);
        std::fflush(stdout);
      }
      before = best;
    }
  }
  finish();
  return 0;
}

int transcribe_all(TranscribeOptions& o) {
  check<UsageError>(o.stream == o.files.empty(),
                    o.stream ? "--stream reads standard input: give it no files" : "give recordings, or --stream");
  check<UsageError>(!o.stream || (!o.json && !o.beam && o.pictures.empty()),
                    "--stream goes with none of --json, --beam and --pictures");
  const LoadedTranscriber loaded(o.model, o);
  return o.stream ? transcribe_stream(loaded) : transcribe_files(o, loaded);
}

}  // namespace

void add_speech_transcribe(Subcommand task, Command& chosen) {
  const Subcommand command = task.add("transcribe", "text and labels of recordings, or of audio as it comes");
  const auto options = std::make_shared<TranscribeOptions>();
  command.add_flags([options] { return extended(options->list(), {options->quiet_flag()}); });
  command.add_words("FILE", options->files, "recordings: WAV, FLAC, Ogg", 1 << 20);
  command.when_parsed([=, &chosen] {
    chosen = [=] {
      if (options->json) print_text_to_stderr();
      options->prepare();
      return transcribe_all(*options);
    };
  });
}

}  // namespace runnel
