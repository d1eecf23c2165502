// Shared by the commands of `runnel speech`: the data and their flags, how a trained model is opened, decoding.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "apps/cli/trained_model.h"
#include "apps/training/model_settings.h"
#include "apps/training/task.h"
#include "datasets/speech/fbank.h"
#include "datasets/speech/speech.h"
#include "models/speech/ctc.h"
#include "models/speech/transcriber.h"

namespace runnel {

struct BenchKernel;  // apps/bench/kernels.h

constexpr int64_t feature_bins = 40;  // as in the paper

struct SpeechSettings : ModelSettings<TranscriberConfig> {
  int64_t length = 3000;  // frames
  int64_t stack = 1;
  std::string normalise = "utterance";
  std::string labels = "phones";  // of digits
  std::string speaker;
  int64_t strings = 5000;
  bool augment = false;
  int64_t validation = 300;
  bool strict = false;
  std::string data;

  Settings list() override;
  Settings data_settings();                                           // those on which the model's input depends
  int64_t positions() const { return (length + stack - 1) / stack; }  // of the model: stacked frames
  TranscriberConfig model_for(int64_t symbols) const;
};

struct SpeechTaskData {
  SpeechData sets;  // normalised
  Spelling spelling;
  int64_t rate;                  // samples per second
  FeatureStatistics statistics;  // of the training set, before it was normalised
};
// Finds --data and reads it. Says how many recordings were left out, and why.
SpeechTaskData load_speech_data(SpeechSettings& settings);

// paper: section 4.3; small: FSDD in minutes on two cores; tiny: in seconds.
SpeechSettings speech_preset(const std::string& name);
void set_preset_cases(SpeechSettings& settings);  // the preset's settings for the model, once that is chosen
// Both must outlive the task.
std::unique_ptr<Task> speech_training(const SpeechSettings& settings, const SpeechTaskData& data);
int train_speech(SpeechSettings& settings, const SpeechTaskData& data);

// A trained model with its settings, spelling and feature statistics.
struct LoadedTranscriber {
  Checkpoint checkpoint;
  Transcriber model;
  SpeechSettings settings;
  Spelling spelling;
  int64_t rate;
  FeatureStatistics statistics;

  LoadedTranscriber(const std::string& path, const RuntimeOptions& options);
};

// The model's outputs for an utterance of a set.
struct Transcription {
  int64_t utterance;
  std::vector<float> logits;  // [stacked frames,symbols]
};
// Of these utterances, in their order; `batch` at a time, those of similar length together.
std::vector<Transcription> transcribe(const Transcriber& model, const SpeechSet& set,
                                      const std::vector<int64_t>& utterances, int64_t batch, const WorkDone& report);

struct SpeechScore {
  EditDistance labels, words;
  double loss = 0;  // nats per label
};
SpeechScore score(const std::vector<Transcription>& all, const SpeechSet& set, const Spelling& spelling,
                  int64_t beam_width);
std::vector<int32_t> labels_of(const std::vector<Spike>& spikes);

// The package's commands, benchmarks and kernels.
void add_speech(Subcommand program);
void add_speech_bench(Subcommand bench);
void add_speech_layers(Subcommand bench);
std::vector<BenchKernel> speech_kernels(Device device);

void add_speech_evaluate(Subcommand task);
void add_speech_transcribe(Subcommand task);

}  // namespace runnel
