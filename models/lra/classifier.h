// A transformer that puts a sequence, or a pair of sequences, into a class, as in Long Range Arena (Tay et al. 2021):
// token embedding plus positions -> encoder in which every position sees all -> one vector -> a layer with relu -> a
// logit for each class.
#pragma once
#include <optional>
#include <string>

#include "models/config_settings.h"
#include "models/encoder.h"
#include "models/settings.h"

namespace runnel {

struct ClassifierConfig {
  EncoderConfig encoder = {.norm = "pre", .gelu = true};
  int64_t vocabulary = 257;  // V: tokens are 0 .. V-1, of which 0 is padding
  int64_t classes = 2;
  int64_t max_length = 1024;  // longest sequence
  int64_t head_width = 0;     // of the layer before the logits; 0: feed_forward
  bool pairs = false;         // sequences 2i and 2i+1 make sample i
  std::string pool = "mean";  // of the positions without padding; or cls: a token of its own before the sequence
  std::string positions = "learned";  // or sinusoidal; added to the embedding
};
// As for AutoregressiveConfig (models/autoregressive.h).
double parameter_lower_bound(const ClassifierConfig& config);
double buffer_size(const ClassifierConfig& config);
Settings list(ClassifierConfig& config);

struct SequenceClassifier {
  using Config = ClassifierConfig;

  ClassifierConfig config;
  Tensor embedding;  // [V,D], with pool cls [V+1,D]
  Tensor positions;  // [max_length,D], with pool cls [max_length+1,D]
  Encoder encoder;
  Linear hidden, predictor;

  SequenceClassifier(const ClassifierConfig& c, Key init, Device device = Device::cpu);

  struct Input {
    Indices tokens;     // [B,L]
    Indices positions;  // [B,L]: each token's place in its sequence, in [0, max_length)
    Indices lengths;    // [B]: tokens from there on are padding
  };  // With pool cls, each sequence begins with token V at position 0; its own tokens are at positions from 1 on.
  // Logits: [B,classes], of pairs [B/2,classes]. With a key, dropout and the attention's randomness are drawn from it
  // (training).
  Tensor operator()(const Input& input, std::optional<Key> key = {}) const;

  Device device() const { return embedding.device(); }
  Parameters parameters() const;
};

// Of pairs of rows a, b one after the other: (a, b, a b, a - b), element by element, for a model of pairs.
Tensor pair_features(const Tensor& x);  // [2B,D] -> [B,4D]

}  // namespace runnel
