#include "models/lra/classifier.h"

#include "engine/check.h"
#include "models/positional_encoding.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

bool has_class_token(const ClassifierConfig& c) { return c.pool == "cls"; }
int64_t longest(const ClassifierConfig& c) { return c.max_length + has_class_token(c); }

const ClassifierConfig& checked(const ClassifierConfig& c) {
  check(c.vocabulary > 0 && c.classes > 1 && c.max_length > 0 && c.head_width >= 0,
        "classifier: vocabulary, max_length and head_width must be positive, and classes at least 2");
  check(c.positions != "sinusoidal" || c.encoder.width() % 2 == 0, "classifier: the width ", c.encoder.width(),
        " must be even for sinusoidal positions");
  return c;
}

double position_numbers(const ClassifierConfig& c) {
  return static_cast<double>(longest(c)) * static_cast<double>(c.encoder.width());
}

int64_t hidden_width(const ClassifierConfig& c) { return c.head_width ? c.head_width : c.encoder.feed_forward; }

}  // namespace

Settings list(ClassifierConfig& c) {
  return extended(
      list(c.encoder, Forms::full),
      {{"input_width", &c.encoder.input_width, in_range(0, 65536), ""},
       {"pool", &c.pool, one_of({"mean", "cls"}),
        "what is classified: the mean of all positions, or a token of its own before the sequence"},
       {"positions", &c.positions, one_of({"learned", "sinusoidal"}), "what is added to the embedding of a token"},
       {"norm", &c.encoder.norm, one_of({"pre", "post"}), "layer normalisation before each block, or after it"},
       {"head_width", &c.head_width, in_range(0, 1 << 20),
        "width of the layer before the logits; 0: that of the feed-forward layers"},
       {"vocabulary", &c.vocabulary, in_range(1, 1 << 24), ""},
       {"class_count", &c.classes, in_range(2, 1 << 20), ""},
       {"max_length", &c.max_length, in_range(1, 1 << 20), ""},
       {"pairs", &c.pairs, {}, ""}});
}

double parameter_lower_bound(const ClassifierConfig& c) {
  const double head = static_cast<double>(hidden_width(c));
  return parameter_lower_bound(c.encoder) + (c.positions == "learned" ? position_numbers(c) : 0) +
         static_cast<double>(c.encoder.width()) * (static_cast<double>(c.vocabulary) + head) +
         head * static_cast<double>(c.classes);
}

double buffer_size(const ClassifierConfig& c) { return c.positions == "learned" ? 0 : position_numbers(c); }

SequenceClassifier::SequenceClassifier(const ClassifierConfig& c, Key init, Device device)
    : config(checked(c)), encoder(c.encoder, false, longest(c), init, device) {
  const int64_t d = c.encoder.width(), head = hidden_width(c);
  const bool learned = c.positions == "learned";
  constexpr float small = 0.02f;  // so that neither the token nor its position dominates the other
  const Key key = init.fold(0);
  embedding = random_embedding(c.vocabulary + has_class_token(c), d, key.fold(0), device, learned ? small : 1);
  positions = learned ? random_embedding(longest(c), d, key.fold(1), device, small)
                      : positional_encoding(longest(c), d, {}, device);
  hidden = random_linear(head, c.pairs ? 4 * d : d, key.fold(2), device);
  predictor = random_linear(c.classes, head, init.fold(1), device);
}

Tensor pair_features(const Tensor& x) {
  check(x.shape().rank() == 2 && x.shape()[0] % 2 == 0, "pair_features: x ", x.shape(), " is not [2B,D]");
  const int64_t pairs = x.shape()[0] / 2, d = x.shape()[1];
  const Tensor both = reshape(x, Shape{pairs, 2 * d});
  const Tensor a = slice(both, 1, 0, d), b = slice(both, 1, d, d);
  return concat({both, a * b, a - b}, 1);
}

Tensor SequenceClassifier::operator()(const Input& in, std::optional<Key> key) const {
  check(in.tokens.shape().rank() == 2 && in.positions.shape() == in.tokens.shape(), "classifier: tokens ",
        in.tokens.shape(), " and positions ", in.positions.shape(), " are not both [B,L]");
  const float p = key ? static_cast<float>(config.encoder.dropout) : 0;
  const Tensor x =
      dropout(add(runnel::embedding(in.tokens, embedding, {}), runnel::embedding(in.positions, positions, {})),
              {p, key ? key->fold(0) : Key{}});
  const Tensor y = encoder(x, {.lengths = in.lengths, .key = key});
  const Tensor pooled = has_class_token(config) ? reshape(slice(y, 1, 0, 1), Shape{y.shape()[0], y.shape()[2]})
                                                : mean_positions(y, in.lengths);
  return predictor(hidden(config.pairs ? pair_features(pooled) : pooled, Activation::relu));
}

Parameters SequenceClassifier::parameters() const {
  Parameters all{{"embedding.weight", embedding}};
  if (config.positions == "learned") all.push_back({"positions.weight", positions});
  encoder.append_parameters(all, "encoder");
  append(all, "hidden", hidden);
  append(all, "predictor", predictor);
  return all;
}

}  // namespace runnel
