#include "models/generation.h"
#include "models/initial.h"
#include "models/transformer.h"

#include <algorithm>

#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

const TransformerConfig config{.layers = 2,
                               .heads = 3,
                               .head_dim = 4,
                               .feed_forward = 20,
                               .vocabulary = 7,
                               .outputs = 5,
                               .max_length = 40,
                               .dropout = 0.2f};

TransformerConfig with(Attention attention) {
  TransformerConfig c = config;
  c.attention = attention;
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

TEST_CASE("the transformer and its twins, with a state and without, are the same function") {
  for (const Attention attention : {Attention::linear, Attention::softmax}) {
    const Transformer model(with(attention), Key{1});
    const Indices tokens = random_indices(Shape{3, 40}, 2, 7);
    const Tensor whole = model(tokens);
    CHECK_EQ(whole.shape(), Shape{3, 40, 5});
    RecurrentTransformer twin(model, 3);
    RereadingTransformer rereading(model, 3);
    for (int64_t l = 0; l < 40; ++l) {
      CAPTURE(l);
      check_close(twin.step(column(tokens, l)), at_position(whole, l), reduction);
      check_close(rereading.step(column(tokens, l)), at_position(whole, l), reduction);
    }
    CHECK_EQ(twin.position().to_vector()[0], 40);
    CHECK_EQ(rereading.position().to_vector()[0], 40);
    check_fails([&] { twin.step(column(tokens, 0)); },
                "embedding: code [40,6] has no row for each of the positions 40 to 40");
  }
}

TEST_CASE("the transformer is causal: a later token changes nothing before it") {
  const Transformer model(config, Key{1});
  std::vector<int32_t> values = random_indices(Shape{1, 20}, 3, 7).to_vector();
  const Tensor before = model(Indices(Shape{1, 20}, values));
  values[11] = (values[11] + 1) % 7;
  const Tensor after = model(Indices(Shape{1, 20}, values));
  for (int64_t l = 0; l < 20; ++l) {
    const bool same = at_position(before, l) == at_position(after, l);
    CHECK_EQ(same, l < 11);
  }
}

TEST_CASE("with rows, the transformer and its recurrent twin are the same function too, whatever the width") {
  for (const int64_t heads : {1, 2, 4, 7}) {
    TransformerConfig rows = config;
    rows.heads = heads;
    rows.head_dim = 2;
    rows.row = 5;
    const Transformer model(rows, Key{1});
    const Indices tokens = random_indices(Shape{2, 12}, 2, 7);
    const Tensor whole = model(tokens);
    RecurrentTransformer twin(model, 2);
    for (int64_t l = 0; l < 12; ++l) check_close(twin.step(column(tokens, l)), at_position(whole, l), reduction);
  }
}

// By the change of the prediction at a position when one byte before it changes.
TEST_CASE("with rows, a new transformer looks at the pixel above the one to predict") {
  constexpr int64_t row = 14, length = row * row - 1;
  const Transformer model({.layers = 2,
                           .heads = 1,
                           .head_dim = 64,  // less codes columns too coarsely
                           .feed_forward = 32,
                           .vocabulary = 256,
                           .outputs = 30,
                           .max_length = length,
                           .dropout = 0,
                           .row = row},
                          Key{1});
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

TEST_CASE("select clones and reorders recurrent states, which then go their own ways") {
  for (const Attention attention : {Attention::linear, Attention::softmax}) {
    const Transformer model(with(attention), Key{1});
    const Indices tokens = random_indices(Shape{2, 6}, 4, 7);
    RecurrentTransformer twin(model, 2);
    for (int64_t l = 0; l < 5; ++l) twin.step(column(tokens, l));
    RecurrentTransformer chosen = twin.select({1, 0, 1});
    const auto last = column(tokens, 5).to_vector();
    const auto one = doubles(chosen.step(Indices(Shape{3}, {last[1], last[0], last[1]})));
    const auto two = doubles(twin.step(column(tokens, 5)));
    for (size_t j = 0; j < 5; ++j) {
      CHECK_LE(std::abs(one[j] - two[5 + j]), reduction);
      CHECK_LE(std::abs(one[5 + j] - two[j]), reduction);
      CHECK_EQ(one[10 + j], one[j]);
    }
    check_fails([&] { twin.select({2}); }, "no sequence 2 among 2");
  }
}

TEST_CASE("complete draws each sequence as if it were alone, from the state that it goes on from") {
  const Transformer model(
      {.layers = 2, .heads = 2, .head_dim = 8, .feed_forward = 32, .vocabulary = 256, .outputs = 6, .max_length = 12},
      Key{1});
  constexpr int64_t n = 12, known = 3, batch = 41;  // more than two threads take at once
  const std::vector<int32_t> prefixes[2] = {{0, 200, 7}, {9, 0, 255}};
  RecurrentTransformer read(model, 2);
  for (size_t t = 0; t + 1 < known; ++t) read.step(Indices(Shape{2}, {prefixes[0][t], prefixes[1][t]}));

  std::vector<int64_t> from;
  std::vector<Key> keys;
  std::vector<uint8_t> together;
  for (uint64_t b = 0; b < batch; ++b) {
    from.push_back(b % 2);
    keys.push_back(Key{b});
    together.insert(together.end(), prefixes[b % 2].begin(), prefixes[b % 2].end());
    together.resize((b + 1) * n);
  }
  int64_t last = 0;
  complete(together, known, read, from, keys, 1, [&](int64_t bytes, int64_t of) {
    CHECK_GT(bytes, last);
    CHECK_EQ(of, batch * (n - known));
    last = bytes;
  });
  CHECK_EQ(last, batch * (n - known));
  for (size_t b : {0, 1, 12, 40}) {
    CAPTURE(b);
    std::vector<uint8_t> alone(together.begin() + b * n, together.begin() + b * n + known);
    alone.resize(n);
    complete(alone, known, read, {from[b]}, {keys[b]}, 1);
    CHECK(alone == std::vector<uint8_t>(together.begin() + b * n, together.begin() + (b + 1) * n));
  }
  RereadingTransformer reread(model, 2);
  for (size_t t = 0; t + 1 < known; ++t) reread.step(Indices(Shape{2}, {prefixes[0][t], prefixes[1][t]}));
  std::vector<uint8_t> again = together;
  for (size_t b = 0; b < batch; ++b) std::fill_n(again.begin() + b * n + known, n - known, uint8_t{0});
  complete(again, known, reread, from, keys, 1);
  CHECK(again == together);
  check_fails([&] { complete(together, known - 1, read, from, keys, 1); }, "the state has read 2 tokens");
  check_fails([&] { complete(together, known, read, {0}, keys, 1); }, "41 keys for 1 states");
}

TEST_CASE("complete tells a model the class of each image, as the token before its first byte") {
  const Transformer model(
      {.layers = 1, .heads = 2, .head_dim = 8, .feed_forward = 16, .vocabulary = 266, .outputs = 6, .max_length = 9},
      Key{1});
  const RecurrentTransformer start(model, 1);
  const auto draw = [&](const std::vector<uint8_t>& classes) {
    std::vector<uint8_t> bytes(2 * 9);
    complete(bytes, 0, start, {0, 0}, {Key{3}, Key{4}}, 1, {}, classes);
    return bytes;
  };
  const std::vector<uint8_t> drawn = draw({7, 2});
  // What the model says after a token of its own: drawn by hand.
  RecurrentTransformer own(model, 1);
  Indices token(Shape{1}, {257 + 6});
  for (size_t t = 0; t < 9; ++t) {
    const Tensor params = own.step(token);
    token = logistic_mixture_sample(params, Keys(Shape{1}, {Key{3}}), 1, own.position());
    CHECK(token.to_vector()[0] == drawn[t]);
  }
  CHECK(draw({7, 2}) == drawn);
  CHECK(draw({1, 2}) != drawn);
  std::vector<uint8_t> bytes(18);
  check_fails([&] { complete(bytes, 0, start, {0, 0}, {Key{3}, Key{4}}, 1); }, "0 that are known");
  check_fails([&] { complete(bytes, 0, start, {0, 0}, {Key{3}, Key{4}}, 1, {}, {1}); }, "1 classes for 2 keys");
}

TEST_CASE("what sampling keeps for a sequence: linear attention the same at any length, a cache more for longer ones") {
  const auto bytes = [](Attention attention, int64_t length) {
    const Transformer model({.layers = 3, .heads = 2, .head_dim = 8, .max_length = length, .attention = attention},
                            Key{1});
    return attention == Attention::lsh ? RereadingTransformer(model, 2).sequence_bytes()
                                       : RecurrentTransformer(model, 2).sequence_bytes();
  };
  CHECK(bytes(Attention::linear, 10) == 3 * 2 * (8 * 8 + 8) * 4);
  CHECK(bytes(Attention::linear, 1000) == bytes(Attention::linear, 10));
  CHECK(bytes(Attention::softmax, 10) == 3 * 2 * 10 * 8 * 2 * 4);
  CHECK(bytes(Attention::lsh, 1000) == 100 * bytes(Attention::lsh, 10));
  const Transformer softmax({.attention = Attention::softmax}, Key{1});
  check_fails([&] { RecurrentTransformer(softmax, 1).state(0); }, "softmax attention has no state");
}

TEST_CASE("a model of images begins by looking near the byte that it predicts") {
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
    const TransformerConfig config{
        .heads = heads, .head_dim = e, .max_length = length, .row = row, .channels = c.channels};
    EncoderLayer layer;
    layer.query = random_linear(d, d, Key{1}, Device::cpu);
    layer.key = random_linear(d, d, Key{2}, Device::cpu);
    look_above(layer, c.layer, config);
    // Of the embedding nothing is known: zeros in the first half.
    const std::vector<float> code = position_code(length, d / 2, row, c.channels, Device::cpu).to_vector();
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
  const Transformer model(config, Key{1});
  const Indices tokens = random_indices(Shape{2, 9}, 5, 7);
  const auto a = doubles(model(tokens, Key{7})), b = doubles(model(tokens, Key{7}));
  CHECK(a == b);
  CHECK(a != doubles(model(tokens, Key{8})));
  CHECK(a != doubles(model(tokens)));
}

TEST_CASE("every parameter gets a gradient") {  // test_golden.cpp says which
  const Transformer model(config, Key{1});
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
  CHECK_EQ(Transformer(TransformerConfig{}, Key{1}).parameter_count(), 3163787);
  CHECK_EQ(Transformer({.layers = 8, .vocabulary = 256, .outputs = 30, .max_length = 783}, Key{1}).parameter_count(),
           6359070);
}

TEST_CASE("memory of a training step grows linearly with the length") {
  const auto peak = [](int64_t length) {
    const Transformer model({.layers = 2, .heads = 2, .head_dim = 8, .feed_forward = 32, .max_length = length}, Key{1});
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
  for (const Attention attention : {Attention::linear, Attention::softmax, Attention::lsh}) {
    const Indices tokens = random_indices(Shape{4, 32}, 5, 7), targets = random_indices(Shape{4, 32}, 6, 5);
    std::vector<std::vector<float>> gradients[2];
    int64_t peak[2];
    for (const bool again : {false, true}) {
      TransformerConfig c = with(attention);
      c.layers = 6;
      c.lsh = {2, 4, 8};
      c.recompute = again;
      const Transformer model(c, Key{1});
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
  check_fails([] { Transformer({.heads = 3, .head_dim = 5}, Key{1}); }, "the width 3 x 5 must be even");
  check_fails([] { Transformer({.layers = 0}, Key{1}); }, "must be positive");
  check_fails([] { Transformer({.row = -1}, Key{1}); }, "a row of -1 bytes");
  const Transformer model(config, Key{1});
  check_fails([&] { model(random_indices(Shape{2, 41}, 1, 7)); }, "the positions 0 to 40");
  check_fails([&] { model(Indices(Shape{1, 1}, {7})); }, "7");
}
