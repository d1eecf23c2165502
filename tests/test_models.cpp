#include <algorithm>
#include <set>

#include "models/attention_kinds.h"
#include "models/autoregressive.h"
#include "models/decoder.h"
#include "models/generation.h"
#include "models/local_heads.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/linear_attention.h"
#include "ops/losses.h"
#include "ops/shapes.h"
#include "ops/softmax_attention.h"
#include "tests/check.h"
#include "tests/paths.h"

using namespace runnel;
using namespace runnel::test;

namespace {

const AutoregressiveConfig config{
    .encoder = {.layers = 2, .heads = 3, .head_dim = 4, .feed_forward = 20, .dropout = 0.2},
    .vocabulary = 7,
    .outputs = 5,
    .max_length = 40,
    .embedding_dropout = 0.2};

AutoregressiveConfig with(const std::string& kind) {
  AutoregressiveConfig c = config;
  // Sizes for short sequences; each kind takes what is its own. With chunks as long as the sequence, what lsh attends
  // to does not depend on later positions.
  c.encoder.attention = {kind,
                         {{"rounds", int64_t{2}},
                          {"buckets", int64_t{4}},
                          {"chunk", int64_t{64}},
                          {"features", int64_t{8}},
                          {"attention-dropout", 0.1}}};
  return c;
}

Indices column(const Indices& tokens, int64_t l) {
  const int64_t batch = tokens.shape()[0], length = tokens.shape()[1];
  std::vector<int32_t> values(static_cast<size_t>(batch));
  for (int64_t b = 0; b < batch; ++b)
    values[static_cast<size_t>(b)] = tokens.to_vector()[static_cast<size_t>(b * length + l)];
  return Indices(Shape{batch}, values);
}

std::vector<double> at_position(const Tensor& y, int64_t l) {  // [B,L,n] -> [B,n]
  const Shape shape = y.shape();
  const auto all = doubles(y);
  std::vector<double> part;
  for (int64_t b = 0; b < shape[0]; ++b)
    part.insert(part.end(), all.begin() + (b * shape[1] + l) * shape[2],
                all.begin() + (b * shape[1] + l + 1) * shape[2]);
  return part;
}

}  // namespace

TEST_CASE("decoder: every decoder of every kind of attention equals the parallel form") {
  for (const AttentionKind* kind : attention_kinds()) {
    if (!kind->causal) continue;
    CAPTURE(kind->name);
    const AutoregressiveTransformer model(with(kind->name), Key{1});
    const Indices tokens = random_indices(Shape{3, 40}, 2, 7);
    const Tensor whole = model(tokens);
    CHECK_EQ(whole.shape(), Shape{3, 40, 5});
    std::vector<std::unique_ptr<Decoder>> decoders;
    if (has_incremental_form(model)) decoders.push_back(incremental_decoder(model, 3));
    decoders.push_back(uncached_decoder(model, 3));
    for (const auto& decoder : decoders) {
      for (int64_t l = 0; l < 40; ++l) {
        CAPTURE(l);
        check_close(decoder->step(column(tokens, l)), at_position(whole, l), reduction);
      }
      CHECK_EQ(decoder->position().to_vector()[0], 40);
      check_fails([&] { decoder->step(column(tokens, 0)); }, "all 40 positions of the model have been read");
    }
  }
  const AutoregressiveTransformer lsh(with("lsh"), Key{1});
  check_fails([&] { incremental_decoder(lsh, 1); }, "lsh attention has no incremental form");
}

TEST_CASE("decoder: many tokens read at once leave what they leave one by one, with any kind of attention") {
  for (const AttentionKind* kind : attention_kinds()) {
    if (!kind->causal) continue;
    for (const char* positions : {"sinusoidal", "learned", "none"}) {
      CAPTURE(kind->name);
      CAPTURE(positions);
      AutoregressiveConfig c = with(kind->name);
      c.positions = positions;
      const AutoregressiveTransformer model(c, Key{1});
      const Indices tokens = random_indices(Shape{2, 20}, 2, 7);
      const Tensor whole = model(tokens);
      const std::vector<int32_t> all = tokens.to_vector();
      const auto part = [&](size_t first, size_t count) {
        std::vector<int32_t> values;
        for (const size_t row : {size_t{0}, size_t{20}})
          values.insert(values.end(), all.begin() + static_cast<int64_t>(row + first),
                        all.begin() + static_cast<int64_t>(row + first + count));
        return Indices(Shape{2, static_cast<int64_t>(count)}, values);
      };
      const std::unique_ptr<Decoder> decoder = make_decoder(model, 2);
      decoder->read_all(part(0, 7));
      decoder->read_all(part(7, 6));
      CHECK_EQ(decoder->position().to_vector()[0], 13);
      for (int64_t l = 13; l < 20; ++l) check_close(decoder->step(column(tokens, l)), at_position(whole, l), reduction);
      const auto read_41 = [&] { make_decoder(model, 1)->read_all(Indices(Shape{1, 41}, std::vector<int32_t>(41))); };
      if (is_unbounded(model))
        CHECK_NOTHROW(read_41());
      else
        check_fails(read_41, "all 40 positions of the model have been read");
    }
  }
}

TEST_CASE("decoder: without positions, kinds with a memory of constant size read any number of tokens") {
  for (const AttentionKind* kind : attention_kinds()) {
    if (!kind->causal) continue;
    CAPTURE(kind->name);
    AutoregressiveConfig c = with(kind->name);
    c.positions = "none";
    const AutoregressiveTransformer model(c, Key{1});
    CHECK_EQ(is_unbounded(model), !model.encoder.empty_memory(1).empty());
    if (!is_unbounded(model)) continue;
    const Indices tokens = random_indices(Shape{1, 100}, 2, 7);
    const std::unique_ptr<Decoder> decoder = make_decoder(model, 1);
    const int64_t bytes = decoder->sequence_bytes();
    Tensor last;
    for (int64_t l = 0; l < 100; ++l) last = decoder->step(column(tokens, l));
    check_close(last, at_position(model(tokens), 99), reduction);
    CHECK_EQ(decoder->sequence_bytes(), bytes);
  }
}

TEST_CASE("transformer: segments with a carried memory give what the whole sequence gives; no others have one") {
  AutoregressiveConfig c = with("gated-deltanet");
  c.positions = "none";
  const AutoregressiveTransformer model(c, Key{1});
  const Indices tokens = random_indices(Shape{1, 30}, 2, 7);
  const std::vector<int32_t> all = tokens.to_vector();
  const Tensor whole = model(tokens);
  EncoderMemory memory = model.encoder.empty_memory(1);
  for (int64_t first = 0; first < 30; first += 10) {
    const Indices part(Shape{1, 10}, {all.begin() + first, all.begin() + first + 10});
    const Tensor y = model.predictor(model.features(part, {}, &memory));
    for (int64_t l = 0; l < 10; ++l) check_close(slice(y, 1, l, 1), at_position(whole, first + l), reduction);
  }
  const AutoregressiveTransformer softmax(with("softmax"), Key{1});
  EncoderMemory none = softmax.encoder.empty_memory(1);
  CHECK(none.empty());
  check_fails([&] { softmax.features(tokens, {}, &none); }, "a memory needs attention that keeps one");
}

TEST_CASE("transformer: a tied predictor is the embedding, with the sum of both gradients; learned positions learn") {
  AutoregressiveConfig c = with("softmax");
  c.positions = "learned";
  c.encoder.gelu = true;  // without kinks
  c.outputs = c.vocabulary;
  c.tied = true;
  const AutoregressiveTransformer model(c, Key{1});
  std::vector<Tensor> inputs;
  for (const NamedTensor& p : model.parameters()) {
    CHECK(p.name != "predictor.weight");
    if (p.name == "value_embedding.weight" || p.name == "position_embedding.weight") inputs.push_back(p.tensor);
  }
  REQUIRE_EQ(inputs.size(), 2);
  const std::vector<Tensor> initial{clone(inputs[0]), clone(inputs[1])};
  const Indices tokens = random_indices(Shape{2, 5}, 2, 7);
  const auto f = [&, own = inputs](const std::vector<Tensor>& in) mutable {
    for (size_t i = 0; i < own.size(); ++i) assign(own[i], in[i].id() == own[i].id() ? initial[i] : in[i]);
    return model(tokens);
  };
  check_gradients(f, inputs, {.tolerance = 2e-2});
  check_fails([&] { model(Indices(Shape{1, 41}, std::vector<int32_t>(41))); }, "41 tokens; the model has 40 positions");
  c.positions = "sinusoidal";
  check_fails([&] { AutoregressiveTransformer(c, Key{1}); }, "a predictor with the embedding's weights needs");
  c.positions = "random";
  check_fails([&] { AutoregressiveTransformer(c, Key{1}); }, "positions random are neither");
}

TEST_CASE("decoder: with weights of int8, the outputs are off by at most 2% of the largest, 4% with the delta rule") {
  const std::vector<std::pair<std::string, double>> bounds{{"linear", 0.02},   {"retention", 0.02},      {"gla", 0.02},
                                                           {"deltanet", 0.04}, {"gated-deltanet", 0.04}, {"kda", 0.04}};
  for (const auto& [kind, bound] : bounds) {
    CAPTURE(kind);
    const AutoregressiveTransformer model(with(kind), Key{1});
    const Indices tokens = random_indices(Shape{3, 40}, 2, 7);
    const Tensor whole = model(tokens);
    set_precision(Precision::int8);
    const std::unique_ptr<Decoder> decoder = incremental_decoder(model, 3);
    set_precision(Precision::f32);
    for (int64_t l = 0; l < 40; ++l) {
      const Tensor y = decoder->step(column(tokens, l));
      check_close(y, at_position(whole, l), bound);
      CHECK(doubles(y) != at_position(whole, l));
    }
  }
}

TEST_CASE("transformer: a later token changes nothing before it, with any kind of attention") {
  for (const AttentionKind* kind : attention_kinds()) {
    if (!kind->causal) continue;
    CAPTURE(kind->name);
    const AutoregressiveTransformer model(with(kind->name), Key{1});
    std::vector<int32_t> values = random_indices(Shape{1, 20}, 3, 7).to_vector();
    const Tensor before = model(Indices(Shape{1, 20}, values));
    values[11] = (values[11] + 1) % 7;
    const Tensor after = model(Indices(Shape{1, 20}, values));
    for (int64_t l = 0; l < 20; ++l) {
      const bool same = at_position(before, l) == at_position(after, l);
      CHECK_EQ(same, l < 11);
    }
  }
}

TEST_CASE("decoder: with a grid of positions, the incremental decoder equals the parallel form, whatever the width") {
  for (const int64_t heads : {1, 2, 4, 7}) {
    AutoregressiveConfig rows = config;
    rows.encoder.heads = heads;
    rows.encoder.head_dim = 2;
    rows.grid.row = 5;
    AutoregressiveTransformer model(rows, Key{1});
    init_for_images(model, Key{1});
    const Indices tokens = random_indices(Shape{2, 12}, 2, 7);
    const Tensor whole = model(tokens);
    const std::unique_ptr<Decoder> decoder = incremental_decoder(model, 2);
    for (int64_t l = 0; l < 12; ++l) check_close(decoder->step(column(tokens, l)), at_position(whole, l), reduction);
  }
}

// By the change of the prediction at a position when one byte before it changes.
TEST_CASE("init_for_images: a new model attends to the pixel above the one to predict") {
  constexpr int64_t row = 14, length = row * row - 1;
  AutoregressiveTransformer model(
      {.encoder = {.layers = 2, .heads = 1, .head_dim = 64, .feed_forward = 32, .dropout = 0},  // 64: resolves columns
       .vocabulary = 256,
       .outputs = 30,
       .max_length = length,
       .grid = {.row = row}},
      Key{1});
  init_for_images(model, Key{1});
  std::vector<int32_t> bytes = random_indices(Shape{1, length}, 3, 256).to_vector();
  const Tensor before = model(Indices(Shape{1, length}, bytes));
  for (const int64_t at : {3 * row + 4, 7 * row + 9, 13 * row + 1}) {
    CAPTURE(at);
    std::vector<std::pair<double, int64_t>> influence;
    for (int64_t j = 0; j < at; ++j) {
      std::vector<int32_t> changed = bytes;
      changed[static_cast<size_t>(j)] = (changed[static_cast<size_t>(j)] + 128) % 256;
      influence.emplace_back(
          distance(at_position(model(Indices(Shape{1, length}, changed)), at), at_position(before, at)), j);
    }
    CHECK_EQ(std::max_element(influence.begin(), influence.end())->second, at + 1 - row);
  }
}

TEST_CASE("decoder: select copies and reorders sequences, which then go on independently") {
  for (const std::string& kind : attention_names(Forms::causal)) {
    CAPTURE(kind);
    const AutoregressiveTransformer model(with(kind), Key{1});
    if (!has_incremental_form(model)) continue;
    const Indices tokens = random_indices(Shape{2, 6}, 4, 7);
    const std::unique_ptr<Decoder> decoder = incremental_decoder(model, 2);
    for (int64_t l = 0; l < 5; ++l) decoder->step(column(tokens, l));
    const std::unique_ptr<Decoder> chosen = decoder->select({1, 0, 1});
    const auto last = column(tokens, 5).to_vector();
    const auto one = doubles(chosen->step(Indices(Shape{3}, {last[1], last[0], last[1]})));
    const auto two = doubles(decoder->step(column(tokens, 5)));
    for (size_t j = 0; j < 5; ++j) {
      CHECK_LE(std::abs(one[j] - two[5 + j]), reduction);
      CHECK_LE(std::abs(one[5 + j] - two[j]), reduction);
      CHECK_EQ(one[10 + j], one[j]);
    }
    check_fails([&] { decoder->select({2}); }, "no sequence 2 among 2");
    const Indices any(Shape{3}, {0, 0, 0});
    for (int64_t l = 6; l < 40; ++l) chosen->step(any);
    check_fails([&] { chosen->step(any); }, "all 40 positions of the model have been read");
  }
}

TEST_CASE("decoder: a state in bf16 takes half the memory and goes on, copied or not, close to one in f32") {
  for (const std::string& kind : attention_names(Forms::causal)) {
    CAPTURE(kind);
    const std::unique_ptr<DecodeState> state =
        make_attention({kind}, {2, 8, true, 16, 40}, {Key{1}}, Device::cpu)->decode({1, 40, Device::cpu});
    if (!state || !state->recurrent_state()) continue;
    const AutoregressiveTransformer model(with(kind), Key{1});
    const std::unique_ptr<Decoder> plain = incremental_decoder(model, 2),
                                   rounded = incremental_decoder(model, 2, Precision::bf16);
    CHECK_LT(rounded->sequence_bytes(), 0.7 * static_cast<double>(plain->sequence_bytes()));
    const Indices tokens = random_indices(Shape{2, 30}, 4, 7);
    std::vector<double> a, b;
    for (int64_t l = 0; l < 30; ++l) {
      a = doubles(plain->step(column(tokens, l)));
      b = doubles(rounded->step(column(tokens, l)));
    }
    CHECK(a != b);
    for (size_t i = 0; i < a.size(); ++i) CHECK_LE(std::abs(a[i] - b[i]), 0.01);
    const std::unique_ptr<Decoder> second = rounded->select({1});
    const auto last = column(tokens, 3).to_vector();
    const auto one = doubles(second->step(Indices(Shape{1}, {last[1]}))),
               two = doubles(rounded->step(column(tokens, 3)));
    for (size_t j = 0; j < one.size(); ++j) CHECK_LE(std::abs(one[j] - two[one.size() + j]), reduction);
  }
}

TEST_CASE("complete draws each sequence as if it were alone, from the state that it goes on from") {
  const AutoregressiveTransformer model({.encoder = {.layers = 2, .heads = 2, .head_dim = 8, .feed_forward = 32},
                                         .vocabulary = 256,
                                         .outputs = 6,
                                         .max_length = 12},
                                        Key{1});
  constexpr int64_t n = 12, known = 3, batch = 41;  // more than two threads take at once
  const std::vector<int32_t> prefixes[3] = {{0, 200, 7}, {9, 0, 255}, {9, 3, 90}};
  const auto read_prefixes = [&](Decoder& decoder) {
    for (size_t t = 0; t + 1 < known; ++t)
      decoder.step(Indices(Shape{3}, {prefixes[0][t], prefixes[1][t], prefixes[2][t]}));
  };
  const std::unique_ptr<Decoder> read = incremental_decoder(model, 3);
  read_prefixes(*read);

  std::vector<int64_t> from;
  std::vector<Key> keys;
  std::vector<uint8_t> together;
  for (uint64_t b = 0; b < batch; ++b) {
    from.push_back(b % 3);
    keys.push_back(Key{b});
    together.insert(together.end(), prefixes[b % 3].begin(), prefixes[b % 3].end());
    together.resize((b + 1) * n);
  }
  int64_t last = 0;
  sample_bytes(together, known, *read, from, keys, 1, [&](int64_t bytes, int64_t of) {
    CHECK_GT(bytes, last);
    CHECK_EQ(of, batch * (n - known));
    last = bytes;
  });
  CHECK_EQ(last, batch * (n - known));
  for (size_t b : {0, 1, 12, 40}) {
    CAPTURE(b);
    std::vector<uint8_t> alone(together.begin() + b * n, together.begin() + b * n + known);
    alone.resize(n);
    sample_bytes(alone, known, *read, {from[b]}, {keys[b]}, 1);
    CHECK(alone == std::vector<uint8_t>(together.begin() + b * n, together.begin() + (b + 1) * n));
  }
  // Drawn by hand: the first new byte follows from all that are known.
  const std::unique_ptr<Decoder> own = incremental_decoder(model, 1);
  for (size_t t = 0; t + 1 < known; ++t) own->read(Indices(Shape{1}, {prefixes[1][t]}));
  Indices token(Shape{1}, {prefixes[1][known - 1]});
  for (size_t t = known; t < n; ++t) {
    const Tensor params = own->step(token);
    token = logistic_mixture_sample(params, Keys(Shape{1}, {keys[1]}), 1, own->position());
    CHECK(token.to_vector()[0] == together[n + t]);
  }
  const std::unique_ptr<Decoder> uncached = uncached_decoder(model, 3);
  read_prefixes(*uncached);
  std::vector<uint8_t> again = together;
  for (size_t b = 0; b < batch; ++b) std::fill_n(again.begin() + b * n + known, n - known, uint8_t{0});
  sample_bytes(again, known, *uncached, from, keys, 1);
  CHECK(again == together);
  for (const int64_t other : {known - 1, known + 1})
    check_fails([&] { sample_bytes(together, other, *read, from, keys, 1); }, "the decoder has read 2 tokens");
  std::vector<uint8_t> longer(batch * 14);
  check_fails([&] { sample_bytes(longer, known, *read, from, keys, 1); }, "14 bytes are more than the 12 positions");
  const auto stop = [](int64_t, int64_t) { throw Error("stopped"); };
  check_fails([&] { sample_bytes(together, known, *read, from, keys, 1, stop); }, "stopped");
  check_fails([&] { sample_bytes(together, known, *read, from, keys, 1, stop); }, "stopped");  // no lock is left behind
  check_fails([&] { sample_bytes(together, known, *read, {0}, keys, 1); }, "41 keys for 1 decoder states");
}

TEST_CASE("complete: a class-conditional model reads the class of each image before its first byte") {
  const AutoregressiveTransformer model({.encoder = {.layers = 1, .heads = 2, .head_dim = 8, .feed_forward = 16},
                                         .vocabulary = 266,
                                         .outputs = 6,
                                         .max_length = 9},
                                        Key{1});
  const std::unique_ptr<Decoder> start = incremental_decoder(model, 1);
  const auto draw = [&](const std::vector<int32_t>& classes) {
    std::vector<uint8_t> bytes(2 * 9);
    sample_bytes(bytes, 0, *start, {0, 0}, {Key{3}, Key{4}}, 1, {}, classes);
    return bytes;
  };
  const std::vector<uint8_t> drawn = draw({7, 2});
  // What the model says after a token of its own: drawn by hand.
  const std::unique_ptr<Decoder> own = incremental_decoder(model, 1);
  Indices token(Shape{1}, {257 + 6});
  for (size_t t = 0; t < 9; ++t) {
    const Tensor params = own->step(token);
    token = logistic_mixture_sample(params, Keys(Shape{1}, {Key{3}}), 1, own->position());
    CHECK(token.to_vector()[0] == drawn[t]);
  }
  CHECK(draw({7, 2}) == drawn);
  CHECK(draw({1, 2}) != drawn);
  std::vector<uint8_t> bytes(18);
  check_fails([&] { sample_bytes(bytes, 0, *start, {0, 0}, {Key{3}, Key{4}}, 1); }, "0 that are known");
  check_fails([&] { sample_bytes(bytes, 0, *start, {0, 0}, {Key{3}, Key{4}}, 1, {}, {1}); }, "1 classes for 2 keys");
}

TEST_CASE("decoder: linear attention's state has the same size at any length, a KV cache grows with it") {
  const auto bytes = [](const std::string& kind, int64_t length) {
    const AutoregressiveTransformer model(
        {.encoder = {.layers = 3, .heads = 2, .head_dim = 8, .attention = {kind}}, .max_length = length}, Key{1});
    return has_incremental_form(model) ? incremental_decoder(model, 2)->sequence_bytes()
                                       : uncached_decoder(model, 2)->sequence_bytes();
  };
  CHECK(bytes("linear", 10) == 3 * 2 * (8 * 8 + 8) * 4);
  CHECK(bytes("linear", 1000) == bytes("linear", 10));
  CHECK(bytes("softmax", 10) == 3 * 2 * 10 * 8 * 2 * 4);
  CHECK(bytes("lsh", 1000) == 100 * bytes("lsh", 10));
  const AutoregressiveTransformer softmax({.encoder = {.attention = {"softmax"}}}, Key{1});
  check_fails([&] { incremental_decoder(softmax, 1)->recurrent_state(0); }, "keeps no state of constant size");
}

TEST_CASE("init_local_heads: each head attends to its neighbour of the byte to predict") {
  struct Case {
    int64_t columns, channels, layer;
    std::vector<int64_t> shift, channel;  // of each head
  };
  for (const Case& c : {Case{28, 1, 0, {0, 1, -1, -2}, {0, 0, 0, 0}}, Case{32, 3, 0, {0, 0, 0}, {0, 1, 2}},
                        Case{32, 3, 1, {-1, -1, -1}, {0, 1, 2}}, Case{32, 3, 2, {1, 1, 1}, {0, 1, 2}}}) {
    CAPTURE(c.channels);
    CAPTURE(c.layer);
    constexpr int64_t rows = 6, e = 32;
    const int64_t heads = std::ssize(c.shift), d = heads * e;
    const int64_t row = c.columns * c.channels, length = rows * row;
    const Grid places{.row = row, .channels = c.channels};
    const AutoregressiveConfig model{.encoder = {.heads = heads, .head_dim = e}, .max_length = length, .grid = places};
    EncoderLayer layer;
    layer.query = random_linear(d, d, Key{1}, Device::cpu);
    layer.key = random_linear(d, d, Key{2}, Device::cpu);
    init_local_heads(layer, c.layer, model);
    // Of the embedding nothing is known: zeros in the first half.
    const std::vector<float> code = positional_encoding(length, d / 2, places, Device::cpu).to_vector();
    std::vector<float> x(static_cast<size_t>(length * d));
    for (int64_t l = 0; l < length; ++l) std::copy_n(code.begin() + l * d / 2, d / 2, x.begin() + l * d + d / 2);
    const Tensor input(Shape{length, d}, x);
    const std::vector<double> q = doubles(elu_plus_one(layer.query(input))),
                              k = doubles(elu_plus_one(layer.key(input)));
    int64_t wrong = 0, tried = 0;
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 2 * row; i + 1 < length; ++i) {
        const auto h = static_cast<size_t>(head);
        const int64_t column = (i + 1) % row / c.channels + c.shift[h];
        // A place beyond a row is not found, nor by the last byte of a row, whose code is far from the next one's.
        if (column < 0 || column >= c.columns || (i + 1) % row == 0) continue;
        double most = 0;
        int64_t seen = 0;
        for (int64_t j = 0; j <= i; ++j) {
          double weight = 0;
          for (int64_t f = head * e; f < (head + 1) * e; ++f)
            weight += q[static_cast<size_t>(i * d + f)] * k[static_cast<size_t>(j * d + f)];
          if (weight > most) most = weight, seen = j;
        }
        int64_t wanted = i;
        while (wanted % row / c.channels != column || wanted % c.channels != c.channel[h]) --wanted;
        ++tried;
        if (seen != wanted) ++wrong;
      }
    CHECK(tried > 300);
    CHECK(wrong == 0);
  }
}

TEST_CASE("dropout is drawn from its key: the same key, the same output; none without a key") {
  const AutoregressiveTransformer model(config, Key{1});
  const Indices tokens = random_indices(Shape{2, 9}, 5, 7);
  const auto a = doubles(model(tokens, Key{7})), b = doubles(model(tokens, Key{7}));
  CHECK(a == b);
  CHECK(a != doubles(model(tokens, Key{8})));
  CHECK(a != doubles(model(tokens)));
}

// Dropout's key, from the key of a step: embedding fold(0); layer n fold(1 + n), of which attention's output fold(0),
// the hidden layer fold(1), the feed-forward output fold(2) and attention itself fold(3).
TEST_CASE("transformer in training: dropout has a key of its own at each place of each layer") {
  for (const std::string kind : {"linear", "softmax"}) {
    CAPTURE(kind);
    const AutoregressiveTransformer model(with(kind), Key{1});
    const Indices tokens = random_indices(Shape{2, 9}, 5, 7);
    const Key key{7};
    constexpr float p = 0.2f;
    const auto apply = [](const Linear& layer, const Tensor& x) { return linear(x, layer.weight, layer.bias); };
    const auto norm = [](const LayerNorm& layer, const Tensor& x) { return layer_norm(x, layer.weight, layer.bias); };
    Tensor x = embedding(tokens, model.embedding, model.positions, {p, key.fold(0)});
    for (uint64_t n = 0; n < 2; ++n) {
      const EncoderLayer& layer = model.encoder.layers[n];
      const Key own = key.fold(1 + n);
      const auto heads = [&](const Linear& projection) { return reshape(apply(projection, x), Shape{2, 9, 3, 4}); };
      const Tensor q = heads(layer.query), k = heads(layer.key), v = heads(layer.value);
      const Tensor a = kind == "linear" ? linear_attention(q, k, v)
                                        : softmax_attention(q, k, v, {}, {.dropout = {0.1f, own.fold(3)}});
      const Tensor attended = apply(layer.out, reshape(a, x.shape()));
      const Tensor x1 = norm(layer.norm1, add(x, dropout(attended, {p, own.fold(0)})));
      const Tensor hidden = dropout(relu(apply(layer.linear1, x1)), {p, own.fold(1)});
      x = norm(layer.norm2, add(x1, dropout(apply(layer.linear2, hidden), {p, own.fold(2)})));
    }
    check_close(model(tokens, key), doubles(apply(model.predictor, norm(model.encoder.norm, x))), reduction);
  }
}

TEST_CASE("encoder: pre-norm layers normalise what enters attention and the feed-forward layer") {
  for (const bool gelu : {false, true}) {
    EncoderLayer layer = AutoregressiveTransformer(config, Key{1}).encoder.layers[0];
    layer.pre_norm = true;
    layer.activation = gelu ? Activation::gelu : Activation::relu;
    const auto norm = [](const LayerNorm& own, const Tensor& x) { return layer_norm(x, own.weight, own.bias); };
    const Tensor x = random_tensor(Shape{2, 9, layer.query.weight.shape()[1]}, 5, -2, 5);
    const auto heads = [&](const Linear& projection) {
      return reshape(projection(norm(layer.norm1, x)), Shape{2, 9, 3, 4});
    };
    const Tensor a = linear_attention(heads(layer.query), heads(layer.key), heads(layer.value));
    const Tensor x1 = x + layer.out(reshape(a, Shape{2, 9, 12}));
    const Tensor hidden = layer.linear1(norm(layer.norm2, x1));
    check_close(layer(x, 0, {}), doubles(x1 + layer.linear2(gelu ? runnel::gelu(hidden) : relu(hidden))), reduction);
  }
}

namespace {

struct Sizes {
  Shape a, b;
};
const std::vector<Sizes> shared_sizes = {{{2, 5, 3, 4}, {5, 3, 7}},
                                         {{3, 4, 2, 3}, {6, 2, 1}},
                                         {{2, 3, 2, 0}, {5, 2, 3}},
                                         {{0, 3, 2}, {3, 5}},
                                         {{40, 33, 8}, {35, 20}}};

}  // namespace

TEST_CASE("concat_shared puts columns side by side, of a batch and of what it shares; gradients go back, summed") {
  for (const Device device : devices())
    for (const Sizes& s : shared_sizes) {
      CAPTURE(s.a);
      CAPTURE(s.b);
      CAPTURE(name(device));
      const Tensor a = random_tensor(s.a, 1, -1, 1, device).set_wants_grad();
      const Tensor b = random_tensor(s.b, 2, -1, 1, device).set_wants_grad();
      Tape tape;
      const Tensor y = concat_shared(a, b);
      const int64_t m = s.a[-1], n = s.b[-1], rows = s.a.without_last().size();
      REQUIRE_EQ(y.shape(), s.a.with_last(m + n));
      const Tensor dy = random_tensor(Shape{y.size(), 1}, 3, -1, 1, device);
      const Gradients gradients = tape.backward(matmul(reshape(y, Shape{1, y.size()}), dy));
      const auto as = doubles(a), bs = doubles(b), dys = doubles(dy);
      std::vector<double> expected(dys.size()), da(as.size()), db(bs.size(), 0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < m + n; ++c) {
          const auto at = static_cast<size_t>(r * (m + n) + c), in_a = static_cast<size_t>(r * m + c),
                     in_b = static_cast<size_t>((r % s.a.without_first().without_last().size()) * n + c - m);
          expected[at] = c < m ? as[in_a] : bs[in_b];
          if (c < m)
            da[in_a] = dys[at];
          else
            db[in_b] += dys[at];
        }
      check_close(y, expected, exact);
      check_close(gradients.of(a), da, exact);
      check_close(gradients.of(b), db, rounding);
    }
}

TEST_CASE("concat_shared: gradients by four-point differences") {
  for (const Device device : devices())
    check_gradients([](const auto& in) { return concat_shared(in[0], in[1]); },
                    {random_tensor(Shape{2, 3, 4}, 1, -1, 1, device), random_tensor(Shape{5, 2}, 2, -1, 1, device)});
}

TEST_CASE("concat_shared names what does not match") {
  const Tensor a(Shape{2, 5, 4});
  check_fails([&] { concat_shared(a, Tensor(Shape{4, 3})); }, "slice: axis 0 of x [4,3] has no 5 indices from 0 on");
  check_fails([&] { concat_shared(a, Tensor(Shape{5, 2, 3})); }, "concat: [2,5,2,3] does not match [2,5,4]");
}

TEST_CASE("random_linear: weights and biases are uniform numbers of two keys") {
  const Linear layer = random_linear(3, 4, Key{5}, Device::cpu);
  for (uint64_t i = 0; i < 12; ++i) CHECK(layer.weight.to_vector()[i] == Key{5}.fold(0).uniform(i) - 0.5f);
  for (uint64_t i = 0; i < 3; ++i) CHECK(layer.bias.to_vector()[i] == Key{5}.fold(1).uniform(i) - 0.5f);
}

TEST_CASE("initial values: each tensor of a model has a key of its own") {
  const Parameters parameters = AutoregressiveTransformer(config, Key{1}).parameters();
  std::set<int64_t> first;  // numbers in [-1,1), in units of 1e-6, that weights and biases begin with
  size_t tensors = 0;
  double inputs = 0;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.name.find("norm") != std::string::npos || parameter.name == "value_embedding.weight") continue;
    CAPTURE(parameter.name);
    if (parameter.tensor.shape().rank() == 2) inputs = static_cast<double>(parameter.tensor.shape()[1]);
    CHECK(first.insert(std::llround(1e6 * std::sqrt(inputs) * parameter.tensor.to_vector()[0])).second);
    ++tensors;
  }
  CHECK(tensors == 2 * (2 * 6 + 1));
}

TEST_CASE("every parameter gets a gradient") {  // test_golden.cpp says which
  const AutoregressiveTransformer model(config, Key{1});
  const Indices tokens = random_indices(Shape{2, 9}, 5, 7), targets = random_indices(Shape{2, 9}, 6, 5);
  Tape tape;
  const Gradients gradients = tape.backward(cross_entropy(model(tokens, Key{3}), targets));
  for (const NamedTensor& parameter : model.parameters()) {
    CAPTURE(parameter.name);
    const std::vector<float> g = gradients.of(parameter.tensor).to_vector();
    CHECK_GT(*std::max_element(g.begin(), g.end()), 0);
  }
}

TEST_CASE("the paper's models have the paper's number of parameters") {
  const auto count = [](const AutoregressiveConfig& c) {
    return element_count(AutoregressiveTransformer(c, Key{1}).parameters());
  };
  CHECK_EQ(count({}), 3163787);
  CHECK_EQ(count({.encoder = {.layers = 8}, .vocabulary = 256, .outputs = 30, .max_length = 783}), 6359070);
}

TEST_CASE("memory of a training step grows linearly with the length") {
  const auto peak = [](int64_t length) {
    const AutoregressiveTransformer model(
        {.encoder = {.layers = 2, .heads = 2, .head_dim = 8, .feed_forward = 32}, .max_length = length}, Key{1});
    const Indices tokens = random_indices(Shape{1, length}, 5, 11);
    const int64_t before = memory_use(Device::cpu).live;
    reset_peak(Device::cpu);
    Tape tape;
    tape.backward(cross_entropy(model(tokens, Key{2}), tokens));
    return static_cast<double>(memory_use(Device::cpu).peak - before);
  };
  CHECK_LE(peak(16384) / peak(4096), 4.2);
}

TEST_CASE("recompute: a transformer's gradients are the same to the bit, in less memory") {
  for (const AttentionKind* kind : attention_kinds()) {
    if (!kind->causal) continue;
    CAPTURE(kind->name);
    const Indices tokens = random_indices(Shape{16, 32}, 5, 7), targets = random_indices(Shape{16, 32}, 6, 5);
    std::vector<std::vector<float>> gradients[2];
    int64_t peak[2];
    for (const bool again : {false, true}) {
      AutoregressiveConfig c = with(kind->name);
      c.encoder.layers = 6;
      c.encoder.attention.values["chunk"] = int64_t{8};  // longer chunks need more memory than a layer's activations
      c.encoder.recompute = again;
      const AutoregressiveTransformer model(c, Key{1});
      const int64_t before = memory_use(Device::cpu).live;
      reset_peak(Device::cpu);
      Tape tape;
      const Gradients g = tape.backward(cross_entropy(model(tokens, Key{3}), targets));
      peak[again] = memory_use(Device::cpu).peak - before;
      for (const NamedTensor& parameter : model.parameters())
        gradients[again].push_back(g.of(parameter.tensor).to_vector());
    }
    CHECK(gradients[0] == gradients[1]);
    CHECK_LT(peak[1], 0.5 * static_cast<double>(peak[0]));
  }
}

TEST_CASE("an impossible model is refused") {
  const auto build = [](const AutoregressiveConfig& c) { return [=] { AutoregressiveTransformer(c, Key{1}); }; };
  const std::string of_packages = has_package("lra") ? ", performer" : "";
  check_fails(build({.encoder = {.heads = 3, .head_dim = 5}}), "the width 3 x 5 must be even");
  check_fails(build({.encoder = {.layers = 0}}), "must be positive");
  check_fails(build({.grid = {.row = -1}}), "a row of -1 bytes");
  check_fails(
      build({.encoder = {.attention = {"none"}}}),
      "attention: none is none of linear, softmax, lsh, retention, gla, deltanet, gated-deltanet, kda" + of_packages);
  check_fails(build({.encoder = {.attention = {"lsh", {{"rounds", int64_t{0}}}}}}), "rounds: 0 is not a number from 1");
  check_fails(build({.encoder = {.attention = {"lsh", {{"rounds", 1.5}}}}}), "lsh's rounds has another type");
  const AutoregressiveTransformer model(config, Key{1});
  check_fails([&] { model(random_indices(Shape{2, 41}, 1, 7)); }, "the positions 0 to 40");
  check_fails([&] { model(Indices(Shape{1, 1}, {7})); }, "7");
}
