#include "models/autoregressive.h"

#include "engine/check.h"
#include "ops/layers.h"

namespace runnel {
namespace {

const AutoregressiveConfig& checked(const AutoregressiveConfig& c) {
  check(c.vocabulary > 0 && c.outputs > 0 && c.max_length > 0,
        "transformer: vocabulary, outputs and max_length must be positive");
  check(c.encoder.width() % 2 == 0, "transformer: the width ", c.encoder.heads, " x ", c.encoder.head_dim,
        " must be even: half of it is the embedding, half the positional encoding");
  check(c.embedding_dropout >= 0 && c.embedding_dropout < 1, "transformer: embedding dropout ", c.embedding_dropout,
        " is not in [0, 1)");
  check(c.grid.row >= 0, "transformer: a row of ", c.grid.row, " bytes");
  check((c.grid.channels == 1 || c.grid.channels == 3) && c.grid.row % c.grid.channels == 0,
        "transformer: ", c.grid.channels, " channels in a row of ", c.grid.row, " bytes");
  return c;
}

}  // namespace

double parameter_lower_bound(const AutoregressiveConfig& c) {
  return parameter_lower_bound(c.encoder) +
         static_cast<double>(c.encoder.width()) *
             (static_cast<double>(c.vocabulary) / 2 + static_cast<double>(c.outputs));
}

double buffer_size(const AutoregressiveConfig& c) {
  return static_cast<double>(c.max_length) * static_cast<double>(c.encoder.width()) / 2;
}

AutoregressiveTransformer::AutoregressiveTransformer(const AutoregressiveConfig& c, Key init, Device device)
    : config(checked(c)),
      embedding(random_embedding(c.vocabulary, c.encoder.width() / 2, init.fold(0), device)),
      positions(positional_encoding(c.max_length, c.encoder.width() / 2, c.grid, device)),
      encoder(c.encoder, true, c.max_length, init, device),
      predictor(random_linear(c.outputs, c.encoder.width(), init.fold(1), device)) {}

Tensor AutoregressiveTransformer::operator()(const Indices& tokens, std::optional<Key> key) const {
  check(tokens.shape().rank() == 2, "transformer: tokens ", tokens.shape(), " are not [B,L]");
  const Dropout dropout = key ? Dropout{static_cast<float>(config.embedding_dropout), key->fold(0)} : Dropout{};
  return predictor(encoder(runnel::embedding(tokens, embedding, positions, dropout), {.key = key}));
}

Parameters AutoregressiveTransformer::parameters() const {
  Parameters all{{"value_embedding.weight", embedding}};
  encoder.append_parameters(all, "transformer");
  append(all, "predictor", predictor);
  return all;
}

}  // namespace runnel
