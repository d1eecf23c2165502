// Every kind of attention in the list of kinds, in each form that it has, on every device.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "models/attention_kinds.h"
#include "models/encoder.h"
#include "ops/elementwise.h"
#include "ops/linear_attention.h"
#include "ops/lsh_attention.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/softmax_attention.h"
#include "tests/attention_kinds.h"

using namespace runnel;
using namespace runnel::test;

namespace {

// x with other numbers from position `first` on, in the sequences that `changed` chooses.
Tensor changed_from(const Tensor& x, int64_t first, int64_t sequence) {
  std::vector<float> numbers = x.to_vector();
  const int64_t row = heads * e;
  for (int64_t i = (sequence * length + first) * row; i < (sequence + 1) * length * row; ++i)
    numbers[static_cast<size_t>(i)] = 1.5f - numbers[static_cast<size_t>(i)];
  return Tensor(x.shape(), numbers, x.device());
}

// Of the positions before `end` of a sequence.
std::vector<float> before(const Tensor& y, int64_t end, int64_t sequence) {
  const std::vector<float> all = y.to_vector();
  const int64_t row = heads * e;
  return {all.begin() + sequence * length * row, all.begin() + (sequence * length + end) * row};
}

}  // namespace

TEST_CASE("attention kinds: names are unique; settings of one name in several kinds are the same") {
  std::set<std::string> names;
  std::map<std::string, const AttentionKind::Option*> options;
  for (const AttentionKind* kind : attention_kinds()) {
    CHECK(names.insert(kind->name).second);
    CHECK_FALSE(kind->help.empty());
    CHECK_FALSE(kind->paper.empty());
    CHECK((kind->causal || kind->full));
    for (const AttentionKind::Option& option : kind->options) {
      const AttentionKind::Option& first = *options.try_emplace(option.name, &option).first->second;
      CHECK(first.value == option.value);
      CHECK(first.allowed.description() == option.allowed.description());
      CHECK(first.help == option.help);
    }
  }
}

TEST_CASE("attention kinds: the output has the shape of v, and is the same on every device") {
  for_each_form([](const KindCase& c) {
    const auto run = [&](Device device) {
      const auto layer = make_attention(small(*c.kind), shape(c.causal), layer_keys, device);
      return (*layer)(queries(1, device), c.layer->shares_query_key() ? Tensor() : queries(2, device),
                      values(3, device), {.input = layer_input(device)});
    };
    const Tensor y = run(c.device);
    CHECK_EQ(y.shape(), Shape{batch, length, heads, e});
    check_close(y, doubles(run(Device::cpu)), reduction);
  });
}

TEST_CASE("attention kinds: four-point gradients of q, k, v, the layer's input and what the kind learns") {
  for_each_form([](const KindCase& c) {
    const bool shared = c.layer->shares_query_key();
    std::vector<Tensor> inputs{queries(1, c.device), values(3, c.device), layer_input(c.device)};
    if (!shared) inputs.push_back(queries(2, c.device));
    const size_t first_learned = inputs.size();
    std::vector<Tensor> learned, initial;
    for (const NamedTensor& own : c.layer->parameters()) {
      learned.push_back(own.tensor);
      initial.push_back(clone(own.tensor));
      inputs.push_back(own.tensor);
    }
    // A key as in training: the same randomness at each call.
    const auto f = [&](const std::vector<Tensor>& in) {
      for (size_t i = 0; i < learned.size(); ++i) {
        const Tensor& x = in[first_learned + i];
        assign(learned[i], x.id() == learned[i].id() ? initial[i] : x);
      }
      const Tensor y = (*c.layer)(in[0], shared ? Tensor() : in[3], in[1], {.key = Key{9}, .input = in[2]});
      return add(y, reshape(in[2], y.shape()));  // few kinds depend on the layer's input
    };
    // Kinds with gates have many parameters, and are made of ops that have such tests themselves.
    check_gradients(f, inputs, {.elements = c.kind->full ? 48 : 16});
  });
}

TEST_CASE("attention kinds: settings reach the op, and in training the key") {
  const Tensor q = values(1, Device::cpu), k = values(2, Device::cpu), v = values(3, Device::cpu);
  const auto run = [&](const AttentionConfig& config, std::optional<Key> key = {}) {
    const auto layer = make_attention(config, shape(true), layer_keys, Device::cpu);
    return (*layer)(q, config.kind == "lsh" ? Tensor() : k, v, {.key = key, .input = layer_input(Device::cpu)})
        .to_vector();
  };
  const AttentionMask causal{.causal = true};
  const Key key{9};

  CHECK(run({"linear", {{"feature-map", std::string("relu")}}}) ==
        linear_attention(q, k, v, causal, FeatureMap::relu).to_vector());
  CHECK(run({"linear", {}}) == linear_attention(q, k, v, causal, FeatureMap::elu_plus_one).to_vector());

  const AttentionConfig dropped{"softmax", {{"attention-dropout", 0.5}}};
  CHECK(run(dropped, key) == softmax_attention(q, k, v, causal, {.dropout = {0.5f, key}}).to_vector());
  CHECK(run(dropped) == softmax_attention(q, k, v, causal).to_vector());

  const AttentionConfig hashed{"lsh", {{"rounds", int64_t{1}}, {"buckets", int64_t{8}}, {"chunk", int64_t{4}}}};
  CHECK(run(hashed, key) == lsh_attention(q, v, causal, {1, 8, 4}, key).to_vector());
  CHECK(run(hashed) == lsh_attention(q, v, causal, {1, 8, 4}, Key{5}).to_vector());
  CHECK(run(hashed, key) != run(hashed));
}

TEST_CASE("attention kinds: a copied decode state goes on as the state itself") {
  for_each_form([](const KindCase& c) {
    const std::unique_ptr<DecodeState> state = c.causal ? c.layer->decode({batch, length, c.device}) : nullptr;
    if (!state) return;
    std::unique_ptr<DecodeState> copy;
    for (int32_t l = 0; l < length; ++l) {
      if (l == 7) copy = state->select(Indices(Shape{batch}, {0, 1}, c.device));
      const auto random = [&](uint64_t seed) {
        return random_tensor(Shape{batch, 1, heads, e}, static_cast<uint64_t>(10 * l) + seed, 0, 1, c.device);
      };
      const Tensor x = reshape(random(4), Shape{batch, 1, heads * e});
      const Indices at(Shape{1}, {l}, c.device);
      const Tensor y = state->step(random(1), random(2), random(3), x, at);
      if (copy) CHECK(copy->step(random(1), random(2), random(3), x, at).to_vector() == y.to_vector());
    }
  });
}

TEST_CASE("attention kinds: padding changes neither valid outputs nor their gradients") {
  for_each_form([](const KindCase& c) {
    const Indices lengths(Shape{batch}, {7, static_cast<int32_t>(length)}, c.device);
    const Tensor q = queries(1, c.device), k = queries(2, c.device), v = values(3, c.device);
    std::vector<std::vector<float>> outputs, gradients;
    for (const bool other : {false, true}) {
      const auto padded = [&](const Tensor& x) { return (other ? changed_from(x, 7, 0) : clone(x)).set_wants_grad(); };
      const Tensor own_q = padded(q), own_k = padded(k), own_v = padded(v);
      Tape tape;
      const Tensor y = (*c.layer)(own_q, c.layer->shares_query_key() ? Tensor() : own_k, own_v,
                                  {.lengths = lengths, .input = padded(layer_input(c.device))});
      outputs.push_back(before(y, 7, 0));
      outputs.push_back(before(y, length, 1));
      // A loss of valid positions only.
      std::vector<float> mask(static_cast<size_t>(y.size()), 1);
      std::fill(mask.begin() + 7 * heads * e, mask.begin() + length * heads * e, 0.0f);
      const Gradients g = tape.backward(weighted_sum(y, Tensor(Shape{y.size(), 1}, mask, c.device)));
      gradients.push_back(before(g.of(own_q), 7, 0));
      gradients.push_back(before(g.of(own_v), 7, 0));
    }
    CHECK(outputs[0] == outputs[2]);
    CHECK(outputs[1] == outputs[3]);
    CHECK(gradients[0] == gradients[2]);
    CHECK(gradients[1] == gradients[3]);
  });
}

TEST_CASE("attention kinds: a sequence alone gives what it gives padded, beside a longer one") {
  for_each_form([](const KindCase& c) {
    const Indices lengths(Shape{batch}, {7, static_cast<int32_t>(length)}, c.device);
    const auto alone = [&](const Tensor& x) {
      return Tensor(Shape{1, 7, x.shape()[2], x.size() / (batch * length * x.shape()[2])}, before(x, 7, 0), c.device);
    };
    const Tensor q = queries(1, c.device), k = queries(2, c.device), v = values(3, c.device);
    const Tensor x = layer_input(c.device), none;
    const bool shared = c.layer->shares_query_key();
    const Tensor padded = (*c.layer)(q, shared ? none : k, v, {.lengths = lengths, .input = x});
    const Tensor y = (*c.layer)(alone(q), shared ? none : alone(k), alone(v),
                                {.input = Tensor(Shape{1, 7, heads * e}, before(x, 7, 0), c.device)});
    const std::vector<float> expected = before(padded, 7, 0);
    check_close(y, {expected.begin(), expected.end()}, rounding);
  });
}

TEST_CASE("attention kinds: a causal output does not depend on later positions") {
  for_each_form([](const KindCase& c) {
    if (!c.causal) return;
    const Tensor q = queries(1, c.device), k = queries(2, c.device), v = values(3, c.device);
    const Tensor none;
    const bool shared = c.layer->shares_query_key();
    const Tensor x = layer_input(c.device);
    const Tensor a = (*c.layer)(q, shared ? none : k, v, {.input = x});
    const Tensor b = (*c.layer)(changed_from(q, 8, 0), shared ? none : changed_from(k, 8, 0), changed_from(v, 8, 0),
                                {.input = changed_from(x, 8, 0)});
    CHECK(before(a, 8, 0) == before(b, 8, 0));
    CHECK(before(a, length, 0) != before(b, length, 0));
    CHECK(before(a, length, 1) == before(b, length, 1));
  });
}

TEST_CASE("attention kinds: decoding one position at a time equals the parallel form") {
  for_each_form([](const KindCase& c) {
    const std::unique_ptr<DecodeState> state = c.causal ? c.layer->decode({batch, length, c.device}) : nullptr;
    if (!state) return;
    const Tensor q = queries(1, c.device), k = queries(2, c.device), v = values(3, c.device);
    const std::vector<double> whole = doubles((*c.layer)(q, k, v, {.input = layer_input(c.device)}));
    for (int64_t l = 0; l < length; ++l) {
      const auto position = [&](const auto& x) {
        std::vector<float> numbers;
        const auto all = x.to_vector();
        for (int64_t b = 0; b < batch; ++b)
          numbers.insert(numbers.end(), all.begin() + (b * length + l) * heads * e,
                         all.begin() + (b * length + l + 1) * heads * e);
        return Tensor(Shape{batch, 1, heads, e}, numbers, c.device);
      };
      std::vector<double> expected;
      for (int64_t b = 0; b < batch; ++b)
        expected.insert(expected.end(), whole.begin() + (b * length + l) * heads * e,
                        whole.begin() + (b * length + l + 1) * heads * e);
      const Indices at(Shape{1}, {static_cast<int32_t>(l)}, c.device);
      const Tensor x = reshape(position(layer_input(c.device)), Shape{batch, 1, heads * e});
      check_close(state->step(position(q), position(k), position(v), x, at), expected, reduction);
    }
  });
}

TEST_CASE("attention kinds: segments that carry a memory give what the whole sequence gives, and gradients within") {
  Choices with_memory;
  for_each_form([&](const KindCase& c) {
    std::vector<Tensor> memory = c.layer->empty_memory(batch, c.device);
    if (!c.causal || memory.empty()) return;
    if (c.device == Device::cpu) with_memory.push_back(c.kind->name);
    const std::vector<Tensor> in{queries(1, c.device), queries(2, c.device), values(3, c.device),
                                 layer_input(c.device)};
    const Tensor whole = (*c.layer)(in[0], in[1], in[2], {.input = in[3]});
    std::vector<Tensor> parts;
    for (int64_t first = 0; first < length; first += 5) {
      const auto part = [&](const Tensor& x) { return slice(x, 1, first, std::min<int64_t>(5, length - first)); };
      parts.push_back((*c.layer)(part(in[0]), part(in[1]), part(in[2]), {.input = part(in[3]), .memory = &memory}));
    }
    check_close(concat(parts, 1), doubles(whole), reduction);
    std::unique_ptr<DecodeState> state = c.layer->decode({batch, length, c.device});
    REQUIRE(state->memory() != nullptr);
    (*c.layer)(in[0], in[1], in[2], {.input = in[3], .memory = state->memory()});
    for (size_t i = 0; i < memory.size(); ++i) check_close((*state->memory())[i], doubles(memory[i]), reduction);

    const auto few = [](const Tensor& x) { return slice(x, 1, 0, 3); };
    const auto second = [&](const std::vector<Tensor>& x) {  // a segment after another one
      std::vector<Tensor> kept;
      for (const Tensor& one : memory) kept.push_back(detach(one));
      return (*c.layer)(x[0], x[1], x[2], {.input = few(in[3]), .memory = &kept});
    };
    check_gradients(second, {few(in[0]), few(in[1]), few(in[2])});
  });
  CHECK(with_memory == Choices{"linear", "retention", "gla", "deltanet", "gated-deltanet", "kda"});
}

TEST_CASE("encoder: every kind of attention trains without a causal mask, with padding") {
  for (const AttentionKind* kind : attention_kinds()) {
    if (!kind->full) continue;
    CAPTURE(kind->name);
    const Encoder encoder({.layers = 2, .heads = heads, .head_dim = e, .feed_forward = 16, .attention = small(*kind)},
                          false, length, Key{1});
    const Tensor x = random_tensor(Shape{batch, length, heads * e}, 4);
    const Indices lengths(Shape{batch}, {7, static_cast<int32_t>(length)});
    Tape tape;
    const Tensor y = encoder(x, {.lengths = lengths, .key = Key{2}});
    CHECK_EQ(y.shape(), x.shape());
    const Gradients gradients = tape.backward(sum(relu(y)));
    Parameters parameters;
    encoder.append_parameters(parameters, "encoder");
    for (const NamedTensor& parameter : parameters) {
      CAPTURE(parameter.name);
      const std::vector<float> g = gradients.of(parameter.tensor).to_vector();
      CHECK(std::any_of(g.begin(), g.end(), [](float number) { return number != 0; }));
    }
  }
}
