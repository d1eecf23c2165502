// The functions that index.html calls. Those that compute return a number below 0 if something is wrong, and
// runnel_error() says what. Pointers are valid until the next call.
#include <emscripten.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "apps/web/session.h"
#include "ops/numerics.h"

namespace runnel {
namespace {

std::string error;
std::optional<PictureModel> model;
std::optional<Completion> completion;
std::optional<Reading> reading;
std::optional<CopyLearner> learner;
std::optional<TextModel> text_model;
std::optional<Writer> writer;
std::vector<float> numbers;
std::vector<int32_t> symbols;

template <class F>
auto guarded(F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& e) {
    error = e.what();
    return -1;
  }
}

std::vector<uint8_t> picture_of(const uint8_t* bytes) { return {bytes, bytes + model.value().size()}; }

}  // namespace
}  // namespace runnel

using namespace runnel;

extern "C" {

EMSCRIPTEN_KEEPALIVE const char* runnel_error() { return error.c_str(); }
EMSCRIPTEN_KEEPALIVE const uint8_t* runnel_pictures() { return completion ? completion->pictures().data() : nullptr; }
EMSCRIPTEN_KEEPALIVE const float* runnel_numbers() { return numbers.data(); }
EMSCRIPTEN_KEEPALIVE const int32_t* runnel_symbols() { return symbols.data(); }

EMSCRIPTEN_KEEPALIVE int runnel_load(const char* path) {
  return guarded([&] {
    set_precision(Precision::int8);
    PictureModel next(path);  // if it cannot be read, the page goes on with the model that it has
    completion.reset();
    reading.reset();
    model.emplace(std::move(next));
    return 0;
  });
}
// The model's side, classes, layers, heads, head_dim, and the bytes of its state -> symbols.
EMSCRIPTEN_KEEPALIVE int runnel_sizes() {
  return guarded([&] {
    const EncoderConfig& e = model.value().model.config.encoder;
    symbols.clear();
    for (const int64_t size : {model->side, model->classes, e.layers, e.heads, e.head_dim,
                               incremental_decoder(model->model, 1)->sequence_bytes()})
      symbols.push_back(static_cast<int32_t>(size));
    return static_cast<int>(symbols.size());
  });
}

EMSCRIPTEN_KEEPALIVE int runnel_complete(const uint8_t* picture, int known, int label, int ways, float temperature,
                                         uint32_t seed) {
  return guarded([&] {
    completion.emplace(model.value(), picture_of(picture), known, label, ways, temperature, seed);
    return 0;
  });
}
// The position, which is the picture's size when all is drawn.
EMSCRIPTEN_KEEPALIVE int runnel_step() {
  return guarded([&] {
    completion.value().step();
    return static_cast<int>(completion->position());
  });
}

// P(class | bytes read) -> numbers; how many.
EMSCRIPTEN_KEEPALIVE int runnel_classes() {
  return guarded([&] {
    numbers = completion.value().class_probabilities();
    return static_cast<int>(numbers.size());
  });
}
EMSCRIPTEN_KEEPALIVE int runnel_label(int way) {
  return guarded([&] { return static_cast<int>(completion.value().label(way)); });
}

// Bits of each byte -> numbers.
EMSCRIPTEN_KEEPALIVE int runnel_read(const uint8_t* picture, int label) {
  return guarded([&] {
    reading.emplace(model.value(), picture_of(picture), label);
    numbers = reading->bits();
    return 0;
  });
}
// |S / Z| [H,E,M] -> numbers.
EMSCRIPTEN_KEEPALIVE int runnel_state(int read, int layer) {
  return guarded([&] {
    numbers = reading.value().state(read, layer);
    return 0;
  });
}

EMSCRIPTEN_KEEPALIVE int runnel_load_text(const char* path) {
  return guarded([&] {
    set_precision(Precision::int8);
    TextModel next(path);
    writer.reset();
    text_model.emplace(std::move(next));
    return 0;
  });
}
EMSCRIPTEN_KEEPALIVE int runnel_write(const char* prompt, float temperature, uint32_t seed) {
  return guarded([&] {
    writer.emplace(text_model.value(), prompt, temperature, seed);
    return 0;
  });
}
// The next byte; the bytes read, of the state, and of a cache of softmax attention -> numbers.
EMSCRIPTEN_KEEPALIVE int runnel_next() {
  return guarded([&] {
    const uint8_t byte = writer.value().next();
    numbers = {static_cast<float>(writer->read()), static_cast<float>(writer->state_bytes()),
               static_cast<float>(writer->cache_bytes())};
    return static_cast<int>(byte);
  });
}

EMSCRIPTEN_KEEPALIVE int runnel_learn(uint32_t seed) {
  return guarded([&] {
    learner.emplace(seed);
    return static_cast<int>(CopyLearner::updates);
  });
}
// The loss in nats.
EMSCRIPTEN_KEEPALIVE float runnel_update() {
  return guarded([&] { return learner.value().update(); });
}
// A copy that the model wrote -> symbols, as many as returned: s, 0, and s again if it is right.
EMSCRIPTEN_KEEPALIVE int runnel_copy() {
  return guarded([&] {
    symbols = learner.value().example();
    return static_cast<int>(symbols.size());
  });
}
}
