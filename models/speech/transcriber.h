// A model that says at each frame of a recording which symbol is spoken there, for connectionist temporal
// classification (section 4.3 of the paper): a transformer of any kind of attention, or a Bi-LSTM.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/config_settings.h"
#include "models/encoder.h"
#include "models/incremental_encoder.h"
#include "models/settings.h"
#include "models/speech/lstm.h"

namespace runnel {

struct TranscriberConfig {
  std::string model = "transformer";  // or bilstm
  EncoderConfig encoder = {};         // of the transformer; its dropout is the Bi-LSTM's, too
  bool causal = false;                // each frame sees no later ones
  int64_t lstm_width = 320;           // of each direction
  int64_t lstm_layers = 3;
  int64_t bins = 40;          // features of a frame
  int64_t symbols = 2;        // of which 0 is the blank
  int64_t max_length = 3000;  // frames of the longest recording
};
// As for AutoregressiveConfig (models/autoregressive.h).
double parameter_lower_bound(const TranscriberConfig& config);
double buffer_size(const TranscriberConfig& config);
Settings list(TranscriberConfig& config);

struct Transcriber {
  using Config = TranscriberConfig;

  TranscriberConfig config;
  Linear input;                    // [D/2,bins]; the other half of the width is the positional encoding
  Tensor positions;                // [max_length,D/2]
  std::optional<Encoder> encoder;  // one of the two
  std::optional<Lstm> lstm;
  Linear output;  // [symbols,D]

  Transcriber(const TranscriberConfig& c, Key init, Device device = Device::cpu);

  // Logits of each frame. Frames from lengths[b] on are padding. With a key, dropout and the attention's randomness are
  // drawn from it (training).
  Tensor operator()(const Tensor& features, const Indices& lengths,
                    std::optional<Key> key = {}) const;  // [B,T,bins] [B] -> [B,T,symbols]

  Device device() const { return output.weight.device(); }
  Parameters parameters() const;
};

// A causal transformer on audio as it comes, frame by frame: the same logits as for the whole recording, with a state
// whose size does not grow, if the attention is one that has such a state. The model must outlive it.
class TranscriberStream {
 public:
  // Throws Error if the model is not causal, or its attention has no incremental form.
  explicit TranscriberStream(const Transcriber& model);

  // The next frame's logits: [bins] -> [symbols]. Throws Error if max_length frames have been read.
  std::vector<float> step(std::span<const float> features);
  int64_t frames() const { return frames_; }  // read so far
  int64_t bytes() const { return encoder_.bytes(); }

 private:
  const Transcriber& model_;
  IncrementalEncoder encoder_;
  int64_t frames_ = 0;
};

}  // namespace runnel
