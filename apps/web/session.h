// What the web page shows, computed by the library: pictures completed, the state of linear attention while a picture
// is read, a text continued, and the copy task learned from nothing. Nothing here knows a browser, so the tests call
// it, too.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datasets/copy_task.h"
#include "models/checkpoint.h"
#include "models/decoder.h"
#include "models/optimizer.h"

namespace runnel {

// A model of gray pictures with linear attention, such as `runnel mnist train` makes; n = side^2 bytes a picture. A
// class-conditional model reads the class before the first byte.
struct PictureModel {
  // Throws Error that names the file if it is missing, damaged, or another model.
  explicit PictureModel(const std::filesystem::path& path) : PictureModel(read_checkpoint(path)) {}
  explicit PictureModel(const Checkpoint& checkpoint);

  AutoregressiveTransformer model;
  int64_t side = 0, classes = 0;  // classes: 0 if the model is not class-conditional

  int64_t size() const { return side * side; }
  int64_t class_tokens() const { return classes > 0 ? 1 : 0; }
  // Token t that the model reads of a picture: its class, then its bytes.
  int32_t token(int64_t t, std::span<const uint8_t> picture, int64_t label) const;
};

// A picture of which the first bytes are known, completed in several ways. With a class these are the completions of
// `runnel mnist complete --image FILE --class label --keep known --ways ways --seed seed`. Without one (label -1), a
// class-conditional model reads the bytes as a picture of each class, and the class of each way is drawn from what it
// then thinks of them: P(class | bytes), in proportion to P(bytes | class).
class Completion {
 public:
  // Throws Error if known is not below n, or is 0 and the model is not class-conditional, or if there is no such class.
  Completion(const PictureModel& of, std::vector<uint8_t> picture, int64_t known, int64_t label, int64_t ways,
             float temperature, uint64_t seed);

  bool step();  // reads a known byte, or draws the next one of each picture; false if all are drawn
  int64_t position() const { return at_; }                            // bytes before this one are read or drawn
  const std::vector<uint8_t>& pictures() const { return pictures_; }  // [ways,n]
  std::vector<float> class_probabilities() const;  // P(class | bytes read so far); of a given class alone: 1
  int64_t label(int64_t way) const { return way_labels_.at(static_cast<size_t>(way)); }  // once it is drawn

 private:
  Indices tokens(int64_t t) const;  // number t of each sequence that is read
  void begin_drawing();

  const PictureModel& of_;
  int64_t known_, ways_, at_ = 0;
  float temperature_;
  Key seed_;
  std::vector<int64_t> labels_, way_labels_;  // of the sequences that are read; of the ways
  std::vector<double> nll_;                   // of each, in nats
  std::vector<uint8_t> pictures_;
  std::unique_ptr<Decoder> decoder_;
  Keys keys_;     // of the ways; empty while known bytes are read
  Indices last_;  // the bytes drawn last
};

// A picture read from its first byte to its last.
class Reading {
 public:
  Reading(const PictureModel& of, std::vector<uint8_t> picture, int64_t label);
  // -log2 P of each byte given those before it: [n]. Without classes the first byte is not predicted: 0.
  std::vector<float> bits() const;
  // The state of a layer after `read` tokens, as apps/images/state_means.h has it: [H,E,M].
  std::vector<float> state(int64_t read, int64_t layer);

 private:
  const PictureModel& of_;
  std::vector<uint8_t> picture_;
  int64_t label_;
  std::map<int64_t, std::unique_ptr<Decoder>> kept_;  // after each row, by the number of tokens read
};

// A model of bytes whose memory does not grow with the text, such as `runnel text train` makes with a kind of attention
// that has a state.
struct TextModel {
  // Throws Error that names the file if it is missing, damaged, or another model.
  explicit TextModel(const std::filesystem::path& path);

  AutoregressiveTransformer model;
};

// A text that goes on from a prompt, byte by byte.
class Writer {
 public:
  Writer(const TextModel& of, const std::string& prompt, float temperature, uint64_t seed);  // not an empty prompt
  uint8_t next();                                                                            // draws a byte
  int64_t read() const { return decoder_->position().to_vector()[0]; }                       // bytes
  int64_t state_bytes() const { return decoder_->sequence_bytes(); }
  // What softmax attention in a model of this size would keep: a key and a value in each layer, of each byte read.
  int64_t cache_bytes() const;

 private:
  const TextModel& of_;
  float temperature_;
  Keys keys_;
  std::unique_ptr<Decoder> decoder_;
  Indices last_;
};

// The paper's copy task (figure 2), learned by a small model while one looks on.
class CopyLearner {
 public:
  static constexpr int64_t updates = 1000;
  explicit CopyLearner(uint64_t seed);

  float update();  // the loss in nats, before the update
  // A new sequence, s . s, whose second half the model has written by itself, as a recurrent network.
  std::vector<int32_t> example() const;
  int64_t length(const std::vector<int32_t>& example) const;  // of s

 private:
  Key seed_;
  AutoregressiveTransformer model_;
  Adam optimizer_;
  int64_t step_ = 0;
};

}  // namespace runnel
