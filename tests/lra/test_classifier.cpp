#include "models/lra/classifier.h"

#include "engine/check.h"
#include "models/checkpoint.h"
#include "models/positional_encoding.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/linear_attention.h"
#include "ops/losses.h"
#include "ops/shapes.h"
#include "tests/check.h"
#include "tests/folder.h"

using namespace runnel;
using namespace runnel::test;

namespace {

ClassifierConfig small(const std::string& pool = "mean", bool pairs = false) {
  return {.encoder = {.layers = 2,
                      .heads = 2,
                      .head_dim = 3,
                      .input_width = 8,
                      .feed_forward = 12,
                      .norm = "pre",
                      .gelu = true,
                      .dropout = 0.2},
          .vocabulary = 9,
          .classes = 3,
          .max_length = 10,
          .pairs = pairs,
          .pool = pool};
}

// Tokens from 1 to 8 and places, with `padding` behind the lengths.
SequenceClassifier::Input input(Device device, int32_t padding = 0, bool class_token = false) {
  constexpr int64_t batch = 4, length = 7;
  const std::vector<int32_t> lengths{7, 3, 5, 1};
  std::vector<int32_t> tokens, places;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t l = 0; l < length; ++l) {
      const bool first = class_token && l == 0;
      const bool valid = l < lengths[static_cast<size_t>(b)];
      tokens.push_back(first   ? 9
                       : valid ? static_cast<int32_t>(1 + Key{3}.below(static_cast<uint64_t>(b * length + l), 8))
                               : padding);
      places.push_back(valid ? static_cast<int32_t>(l) : padding);
    }
  const Shape shape{batch, length};
  return {Indices(shape, tokens, device), Indices(shape, places, device), Indices(Shape{batch}, lengths, device)};
}

}  // namespace

TEST_CASE("classifier: padding changes no logit, and every parameter gets a gradient") {
  for (const Device device : devices())
    for (const std::string pool : {"mean", "cls"})
      for (const bool pairs : {false, true}) {
        CAPTURE(pool);
        CAPTURE(pairs);
        const SequenceClassifier model(small(pool, pairs), Key{1}, device);
        const bool class_token = pool == "cls";
        const Tensor logits = model(input(device, 0, class_token));
        CHECK(logits.shape() == Shape{pairs ? 2 : 4, 3});
        check_close(model(input(device, 5, class_token)), doubles(logits), reduction);
        Tape tape;
        const std::vector<int32_t> labels = pairs ? std::vector<int32_t>{2, 0} : std::vector<int32_t>{2, 0, 1, 1};
        const Indices targets(Shape{std::ssize(labels)}, labels, device);
        const Gradients gradients = tape.backward(cross_entropy(model(input(device, 0, class_token), Key{7}), targets));
        for (const auto& [name, tensor] : model.parameters()) {
          CAPTURE(name);
          const std::vector<float> g = gradients.of(tensor).to_vector();
          CHECK(std::any_of(g.begin(), g.end(), [](float x) { return x != 0; }));
        }
      }
}

TEST_CASE("encoder: a pre-norm layer is x + attention(norm(x)), then x + feed_forward(norm(x)) with gelu") {
  const Encoder encoder(
      {.layers = 1, .heads = 2, .head_dim = 3, .input_width = 8, .feed_forward = 12, .norm = "pre", .gelu = true},
      false, 10, Key{1});
  const EncoderLayer& l = encoder.layers[0];
  const Tensor x = random_tensor(Shape{2, 7, 8}, 1);
  const Tensor n = layer_norm(x, l.norm1.weight, l.norm1.bias);
  const auto heads = [&](const Linear& projection) { return reshape(projection(n), Shape{2, 7, 2, 3}); };
  const Tensor a = linear_attention(heads(l.query), heads(l.key), heads(l.value), {.causal = false});
  const Tensor x1 = add(x, l.out(reshape(a, Shape{2, 7, 6})));
  const Tensor y = add(x1, l.linear2(gelu(l.linear1(layer_norm(x1, l.norm2.weight, l.norm2.bias)))));
  check_close(encoder(x), doubles(layer_norm(y, encoder.norm.weight, encoder.norm.bias)), reduction);
}

TEST_CASE("classifier: sinusoidal positions are no parameters; positions tell sequences apart") {
  ClassifierConfig config = small();
  config.positions = "sinusoidal";
  const SequenceClassifier model(config, Key{1});
  for (const auto& [name, tensor] : model.parameters()) CHECK(name != "positions.weight");
  SequenceClassifier::Input in = input(Device::cpu);
  const std::vector<float> logits = model(in).to_vector();
  std::vector<int32_t> shifted = in.positions.to_vector();
  for (int32_t& place : shifted) ++place;
  in.positions = Indices(in.positions.shape(), shifted);
  CHECK(model(in).to_vector() != logits);
}

TEST_CASE("classifier: norm and gelu of its encoder have an effect, and are pre and gelu by default") {
  const auto logits = [](const ClassifierConfig& config) {
    return SequenceClassifier(config, Key{1})(input(Device::cpu)).to_vector();
  };
  ClassifierConfig config = small();
  const std::vector<float> expected = logits(config);
  const ClassifierConfig standard;
  config.encoder.norm = standard.encoder.norm, config.encoder.gelu = standard.encoder.gelu;
  CHECK(logits(config) == expected);
  config.encoder.gelu = false;
  const std::vector<float> relu = logits(config);
  CHECK(relu != expected);
  config.encoder.norm = "post";
  CHECK(logits(config) != relu);
  config.encoder.norm = "none";
  check_fails([&] { logits(config); }, "encoder: norm is neither post nor pre but none");
}

TEST_CASE("classifier: a checkpoint gives the same logits, and is checked") {
  const Folder folder;
  ClassifierConfig config = small("cls", true);
  config.encoder.norm = "post";
  config.encoder.gelu = false;
  config.encoder.attention = {"softmax", {}};
  const SequenceClassifier model(config, Key{1});
  Checkpoint c{.path = folder.path / "model.safetensors",
               .content = {model.parameters(), {}},
               .task = "retrieval",
               .model = model_json(model.config),
               .config = nlohmann::json::object(),
               .data = nullptr,
               .state = {{"step", 3}}};
  save_checkpoint(c);
  const SequenceClassifier loaded = load_model<SequenceClassifier>(read_checkpoint(c.path, "retrieval"));
  CHECK(loaded(input(Device::cpu, 0, true)).to_vector() == model(input(Device::cpu, 0, true)).to_vector());
  c.model["class_count"] = 1000;
  save_checkpoint(c);
  check_fails([&] { load_model<SequenceClassifier>(read_checkpoint(c.path)); },
              "is damaged: it describes a model that is larger than the file");
  c.model["class_count"] = 1;
  save_checkpoint(c);
  check_fails([&] { load_model<SequenceClassifier>(read_checkpoint(c.path)); },
              "is damaged: it does not describe its model");
}

TEST_CASE("classifier: impossible shapes and configurations are refused") {
  const SequenceClassifier model(small(), Key{1});
  SequenceClassifier::Input in = input(Device::cpu);
  in.positions = Indices(Shape{4, 6});
  check_fails([&] { model(in); }, "classifier: tokens [4,7] and positions [4,6] are not both [B,L]");
  ClassifierConfig config = small();
  config.classes = 1;
  check_fails([&] { SequenceClassifier(config, Key{1}); }, "classes at least 2");
}

TEST_CASE("pair_features: both vectors, their product and their difference, and the gradient") {
  for (const Device device : devices()) {
    constexpr int64_t pairs = 3, d = 19;
    const Tensor x = random_tensor(Shape{2 * pairs, d}, 1, -1, 1, device);
    const std::vector<double> all = doubles(x);
    std::vector<double> expected;
    for (int64_t i = 0; i < pairs; ++i)
      for (int64_t feature = 0; feature < 4; ++feature)
        for (int64_t j = 0; j < d; ++j) {
          const double a = all[static_cast<size_t>(2 * i * d + j)], b = all[static_cast<size_t>((2 * i + 1) * d + j)];
          expected.push_back(feature == 0 ? a : feature == 1 ? b : feature == 2 ? a * b : a - b);
        }
    check_close(pair_features(x), expected, reduction);
    check_gradients([](const std::vector<Tensor>& in) { return pair_features(in[0]); }, {x});
  }
  check_fails([] { pair_features(Tensor(Shape{3, 2})); }, "pair_features: x [3,2] is not [2B,D]");
}
