#include "models/speech/transcriber.h"

#include <cmath>

#include "engine/check.h"
#include "models/positional_encoding.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

const TranscriberConfig& checked(const TranscriberConfig& c) {
  check(c.bins > 0 && c.symbols > 1 && c.max_length > 0,
        "transcriber: bins and max_length must be positive, and "
        "symbols at least 2");
  check(c.encoder.width() % 2 == 0, "transcriber: the width ", c.encoder.width(),
        " must be even: half of it are the features, half the positional encoding");
  return c;
}

bool is_transformer(const TranscriberConfig& c) { return c.model == "transformer"; }

LstmConfig lstm_of(const TranscriberConfig& c) {
  return {.input_width = c.bins,
          .width = c.lstm_width,
          .layers = c.lstm_layers,
          .bidirectional = !c.causal,
          .dropout = c.encoder.dropout};
}

}  // namespace

Settings list(TranscriberConfig& c) {
  return extended(list(c.encoder, Forms::either),
                  {{"model", &c.model, one_of({"transformer", "bilstm"}), "a transformer, or long short-term memory"},
                   {"causal", &c.causal, {}, "no frame sees later ones, so that audio can be transcribed as it comes"},
                   {"norm", &c.encoder.norm, one_of({"post", "pre"}),
                    "layer normalisation after each block of the transformer, or before"},
                   {"lstm_width", &c.lstm_width, in_range(1, 1 << 16), "width of each direction of the Bi-LSTM"},
                   {"lstm_layers", &c.lstm_layers, in_range(1, 1024), "layers of the Bi-LSTM"},
                   {"bins", &c.bins, in_range(1, 1 << 12), ""},
                   {"symbols", &c.symbols, in_range(2, 1 << 20), ""},
                   {"max_length", &c.max_length, in_range(1, 1 << 20), ""}});
}

double parameter_lower_bound(const TranscriberConfig& c) {
  if (is_transformer(c)) return parameter_lower_bound(c.encoder);
  const auto width = static_cast<double>(c.lstm_width), directions = c.causal ? 1.0 : 2.0;
  return static_cast<double>(c.lstm_layers) * directions * 4 * width * width;
}

double buffer_size(const TranscriberConfig& c) {
  return is_transformer(c) ? static_cast<double>(c.max_length) * static_cast<double>(c.encoder.width()) / 2 : 0;
}

Transcriber::Transcriber(const TranscriberConfig& c, Key init, Device device) : config(checked(c)) {
  if (is_transformer(c)) {
    const int64_t half = c.encoder.width() / 2;
    input = random_linear(half, c.bins, init.fold(0), device);
    positions = positional_encoding(c.max_length, half, {}, device);
    encoder.emplace(c.encoder, c.causal, c.max_length, init, device);
  } else {
    lstm.emplace(lstm_of(c), init.fold(2), device);
  }
  output = random_linear(c.symbols, encoder ? c.encoder.width() : lstm_of(c).output_width(), init.fold(1), device);
  // Most frames say nothing; without this, hundreds of updates only find that out. The blank begins with some 0.9.
  std::vector<float> bias = output.bias.to_vector();
  bias[0] = std::log(9 * static_cast<float>(c.symbols - 1));
  output.bias = Tensor(output.bias.shape(), bias, device).set_wants_grad();
}

Tensor Transcriber::operator()(const Tensor& features, const Indices& lengths, std::optional<Key> key) const {
  check(features.shape().rank() == 3 && features.shape()[2] == config.bins, "transcriber: features ", features.shape(),
        " are not [B,T,", config.bins, "]");
  if (lstm) return output((*lstm)(features, lengths, key));
  check(features.shape()[1] <= config.max_length, "transcriber: ", features.shape()[1], " frames; the model has ",
        config.max_length, " positions");
  return output((*encoder)(concat_shared(input(features), positions), {.lengths = lengths, .key = key}));
}

namespace {

const Encoder& causal_encoder(const Transcriber& model) {
  check(model.encoder && model.config.causal, "transcriber: audio can be read as it comes by causal transformers only");
  return *model.encoder;
}

}  // namespace

TranscriberStream::TranscriberStream(const Transcriber& model)
    : model_(model), encoder_(causal_encoder(model), {1, model.config.max_length, model.device()}) {}

std::vector<float> TranscriberStream::step(std::span<const float> features) {
  check(frames_ < model_.config.max_length, "transcriber: all ", model_.config.max_length,
        " positions of the model have been read");
  const Device device = model_.device();
  const Indices position(Shape{1}, {static_cast<int32_t>(frames_++)}, device);
  const Tensor x(Shape{1, 1, std::ssize(features)}, {features.begin(), features.end()}, device);
  const Tensor y = encoder_.step(concat_shared(model_.input(x), gather(model_.positions, position)), position);
  return model_.output(y).to_vector();
}

Parameters Transcriber::parameters() const {
  Parameters all;
  if (encoder) {
    append(all, "input", input);
    encoder->append_parameters(all, "transformer");
  } else {
    lstm->append_parameters(all, "lstm");
  }
  append(all, "output", output);
  return all;
}

}  // namespace runnel
