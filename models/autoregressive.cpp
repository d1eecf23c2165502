#include "models/autoregressive.h"

#include <cmath>

#include "engine/check.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

const AutoregressiveConfig& checked(const AutoregressiveConfig& c) {
  check(c.vocabulary > 0 && c.outputs > 0 && c.max_length > 0,
        "transformer: vocabulary, outputs and max_length must be positive");
  check(c.positions == "sinusoidal" || c.positions == "learned" || c.positions == "none", "transformer: positions ",
        c.positions, " are neither sinusoidal nor learned nor none");
  check(!c.tied || (c.positions != "sinusoidal" && c.outputs == c.vocabulary),
        "transformer: a predictor with the embedding's weights needs as many outputs as tokens, and positions that are "
        "not beside the embedding");
  check(c.positions != "sinusoidal" || c.encoder.width() % 2 == 0, "transformer: the width ", c.encoder.heads, " x ",
        c.encoder.head_dim, " must be even: half of it is the embedding, half the positional encoding");
  check(c.embedding_dropout >= 0 && c.embedding_dropout < 1, "transformer: embedding dropout ", c.embedding_dropout,
        " is not in [0, 1)");
  check(c.grid.row >= 0, "transformer: a row of ", c.grid.row, " bytes");
  check((c.grid.channels == 1 || c.grid.channels == 3) && c.grid.row % c.grid.channels == 0,
        "transformer: ", c.grid.channels, " channels in a row of ", c.grid.row, " bytes");
  return c;
}

bool is_sinusoidal(const AutoregressiveConfig& c) { return c.positions == "sinusoidal"; }

int64_t embedding_width(const AutoregressiveConfig& c) {
  return is_sinusoidal(c) ? c.encoder.width() / 2 : c.encoder.width();
}

Tensor initial_positions(const AutoregressiveConfig& c, Key init, Device device) {
  if (is_sinusoidal(c)) return positional_encoding(c.max_length, c.encoder.width() / 2, c.grid, device);
  if (c.positions == "none") return {};
  return random_embedding(c.max_length, c.encoder.width(), init.fold(0).fold(1), device, 0.02f);
}

}  // namespace

double parameter_lower_bound(const AutoregressiveConfig& c) {
  const auto width = static_cast<double>(c.encoder.width());
  const double positions = c.positions == "learned" ? width * static_cast<double>(c.max_length) : 0;
  return parameter_lower_bound(c.encoder) +
         static_cast<double>(c.vocabulary) * static_cast<double>(embedding_width(c)) +
         (c.tied ? 0 : width * static_cast<double>(c.outputs)) + positions;
}

double buffer_size(const AutoregressiveConfig& c) {
  return is_sinusoidal(c) ? static_cast<double>(c.max_length) * static_cast<double>(c.encoder.width()) / 2 : 0;
}

AutoregressiveTransformer::AutoregressiveTransformer(const AutoregressiveConfig& c, Key init, Device device)
    : config(checked(c)),
      embedding(random_embedding(c.vocabulary, embedding_width(c), init.fold(0), device,
                                 c.tied ? 1 / std::sqrt(static_cast<float>(c.encoder.width())) : 1)),
      positions(initial_positions(c, init, device)),
      encoder(c.encoder, true, c.max_length, init, device),
      predictor(random_linear(c.outputs, c.encoder.width(), init.fold(1), device)) {
  if (c.tied) predictor.weight = embedding;
}

Tensor AutoregressiveTransformer::operator()(const Indices& tokens, std::optional<Key> key) const {
  return predictor(features(tokens, key));
}

Tensor AutoregressiveTransformer::features(const Indices& tokens, std::optional<Key> key, EncoderMemory* memory) const {
  const Dropout dropout = key ? Dropout{static_cast<float>(config.embedding_dropout), key->fold(0)} : Dropout{};
  return encoder(embed(tokens, dropout), {.key = key}, memory);
}

Tensor AutoregressiveTransformer::embed(const Indices& tokens, Dropout dropout, const Indices& first) const {
  check(tokens.shape().rank() == 2, "transformer: tokens ", tokens.shape(), " are not [B,L]");
  if (config.positions != "learned")
    return runnel::embedding(tokens, embedding, positions, dropout, positions ? first : Indices());
  const int64_t length = tokens.shape()[1];
  check(length <= config.max_length, "transformer: ", length, " tokens; the model has ", config.max_length,
        " positions");
  const Tensor code = first ? gather(positions, first) : slice(positions, 0, 0, length);
  return runnel::dropout(add(runnel::embedding(tokens, embedding, {}), code), dropout);
}

Parameters AutoregressiveTransformer::parameters() const {
  Parameters all{{"value_embedding.weight", embedding}};
  if (config.positions == "learned") all.push_back({"position_embedding.weight", positions});
  encoder.append_parameters(all, "transformer");
  if (!config.tied) all.push_back({"predictor.weight", predictor.weight});
  all.push_back({"predictor.bias", predictor.bias});
  return all;
}

}  // namespace runnel
