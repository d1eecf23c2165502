// Transcribers: padding, what causal ones see, the stream, checkpoints.
#include "models/attention_kinds.h"
#include "models/speech/transcriber.h"

#include "models/checkpoint.h"
#include "tests/check.h"
#include "tests/folder.h"

using namespace runnel;
using namespace runnel::test;

namespace {

TranscriberConfig small(const std::string& model, bool causal = false) {
  TranscriberConfig c{.model = model, .causal = causal};
  c.encoder = {.layers = 2, .heads = 2, .head_dim = 8, .feed_forward = 24, .dropout = 0};
  c.lstm_width = 7;
  c.lstm_layers = 2;
  c.bins = 5;
  c.symbols = 4;
  c.max_length = 40;
  return c;
}

}  // namespace

TEST_CASE("transcriber: padding changes nothing, of any kind of attention and of the Bi-LSTM") {
  for (const Device device : devices()) {
    std::vector<TranscriberConfig> configs{small("bilstm")};
    for (const AttentionKind* kind : attention_kinds()) {
      if (!kind->full) continue;
      configs.push_back(small("transformer"));
      configs.back().encoder.attention.kind = kind->name;
    }
    for (const TranscriberConfig& c : configs) {
      const std::string kind = c.model == "bilstm" ? c.model : c.encoder.attention.kind;
      CAPTURE(kind);
      const Transcriber model(c, Key{2}, device);
      const Tensor x = random_tensor(Shape{1, 12, 5}, 3, -1, 1, device);
      std::vector<float> longer = x.to_vector();
      longer.resize(static_cast<size_t>(20 * 5), 7);
      const Indices length(Shape{1}, {12}, device);
      const std::vector<double> alone = doubles(model(x, length));
      std::vector<double> padded = doubles(model(Tensor(Shape{1, 20, 5}, longer, device), length));
      padded.resize(alone.size());
      CHECK(distance(padded, alone) < 1e-5);
    }
  }
}

TEST_CASE("transcriber: a stream gives the logits of the whole recording") {
  for (const Device device : devices())
    for (const AttentionKind* kind : attention_kinds()) {
      TranscriberConfig c = small("transformer", true);
      c.encoder.attention.kind = kind->name;
      if (!kind->causal) continue;
      for (const char* norm : {"post", "pre"}) {
        CAPTURE(kind->name);
        c.encoder.norm = norm;
        const Transcriber model(c, Key{2}, device);
        if (!model.encoder->layers[0].attention->decode({1, 40, device})) {
          check_fails([&] { const TranscriberStream stream(model); }, "has no incremental form");
          continue;
        }
        const Tensor x = random_tensor(Shape{1, 30, 5}, 3, -1, 1, device);
        const std::vector<float> features = x.to_vector();
        TranscriberStream stream(model);
        const int64_t bytes = stream.bytes();
        std::vector<double> logits;
        for (size_t t = 0; t < 30; ++t)
          for (const float z : stream.step(std::span(features).subspan(t * 5, 5))) logits.push_back(z);
        CHECK(stream.frames() == 30);
        CHECK(stream.bytes() == bytes);
        CHECK(distance(logits, doubles(model(x, {}))) < 1e-4);
        for (int t = 30; t < 40; ++t) stream.step(std::vector<float>(5));
        check_fails([&] { stream.step(std::vector<float>(5)); }, "all 40 positions of the model have been read");
      }
    }
  const Transcriber full(small("transformer"), Key{1});
  check_fails([&] { const TranscriberStream stream(full); }, "by causal transformers only");
}

TEST_CASE("transcriber: a causal model sees no later frames; the blank begins with a probability of 0.9") {
  for (const char* kind : {"transformer", "bilstm"}) {
    const Transcriber model(small(kind, true), Key{4});
    const Tensor x = random_tensor(Shape{1, 20, 5}, 5);
    std::vector<float> other = x.to_vector();
    for (size_t i = 10 * 5; i < other.size(); ++i) other[i] += 1;
    std::vector<double> a = doubles(model(x, {})), b = doubles(model(Tensor(x.shape(), other), {}));
    a.resize(10 * 4), b.resize(10 * 4);
    CHECK(distance(a, b) < 1e-6);
    double blank = 0;
    for (size_t t = 0; t < 10; ++t) {
      double sum = 0;
      for (size_t k = 0; k < 4; ++k) sum += std::exp(a[4 * t + k]);
      blank += std::exp(a[4 * t]) / sum / 10;
    }
    CHECK(blank > 0.7);
  }
}

TEST_CASE("transcriber: a checkpoint makes the same model again") {
  const Folder folder;
  for (const char* kind : {"transformer", "bilstm"}) {
    const Transcriber model(small(kind), Key{6});
    const auto path = folder.path / "model.safetensors";
    save_checkpoint({.path = path,
                     .content = {model.parameters(), {}},
                     .task = "speech",
                     .model = model_json(model.config),
                     .config = {},
                     .data = {},
                     .state = {{"step", 1u}}});
    const Transcriber again = load_model<Transcriber>(read_checkpoint(path, "speech"));
    const Tensor x = random_tensor(Shape{2, 9, 5}, 7);
    check_close(again(x, {}), doubles(model(x, {})), exact);
  }
  check_fails(
      [] {
        Transcriber(small("transformer"), Key{1})(Tensor(Shape{1, 3, 4}), {});
      },
      "features [1,3,4] are not [B,T,5]");
  check_fails(
      [] {
        Transcriber(small("transformer"), Key{1})(Tensor(Shape{1, 41, 5}), {});
      },
      "the model has 40 positions");
}
