// runnel text: a language model of bytes, trained on any text. It predicts each next byte by a logit for each of its
// 256 values.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/trained_model.h"
#include "apps/training/model_settings.h"
#include "apps/training/task.h"

namespace runnel {

struct TextSettings : TransformerSettings {
  int64_t length = 256;
  std::string carry = "no", data;

  Settings list() override;
  bool carries() const { return carry == "yes"; }
  AutoregressiveConfig model_for_bytes() const { return model_for(256, 256, length); }
};
void add_text_training(Subcommand text);

// A trained model of a run of `runnel text train`.
struct LoadedTextModel {
  explicit LoadedTextModel(const ModelOptions& options);
  Checkpoint checkpoint;
  AutoregressiveTransformer model;
  bool carries;  // it was trained with --carry yes
};

// The mean of -log P(byte) in nats over all bytes of a text but the first. `carries`: the model reads the text as one
// sequence, with its state carried from segment to segment; else windows of `length` bytes, `batch` at a time, in which
// a byte is predicted from those before it in its window.
double mean_nll(const AutoregressiveTransformer& model, const std::vector<uint8_t>& text, bool carries, int64_t length,
                int64_t batch, const WorkDone& report);
void add_text_evaluation(Subcommand text);

struct DrawnBytes {
  double temperature = 1;
  int64_t top_k = 0;  // only so many of the most probable bytes; 0: all
  double top_p = 1;   // only the most probable bytes that have this probability together
};
// A byte drawn from its logits [256] with a number from 0 to 1. Temperature 0: the most probable one.
uint8_t draw_byte(std::span<const float> logits, const DrawnBytes& how, double uniform);
// Reads `prompt` and draws bytes after it, which `use` gets one after another, until it returns false. A model that has
// a longest sequence and has read so much goes on from the last half of that.
void continue_text(const AutoregressiveTransformer& model, const std::string& prompt, const DrawnBytes& how, Key key,
                   const std::function<bool(uint8_t)>& use);
void add_text_generation(Subcommand text);

}  // namespace runnel
