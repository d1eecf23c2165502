// The attention kind synthesizer in its forms, against its definition.
#include "models/attention.h"
#include "ops/elementwise.h"
#include "tests/check.h"

using namespace runnel;
using namespace runnel::test;

namespace {

constexpr int64_t batch = 2, length = 6, longest = 8, heads = 2, e = 4, width = 5;

struct Form {
  std::string logits;
  bool has_dot;
  Device device;
  std::shared_ptr<const AttentionLayer> layer;
};

AttentionConfig config(const std::string& logits, bool has_dot) {
  return {"synthesizer",
          {{"synthesizer", logits},
           {"synthesizer-dot", std::string(has_dot ? "yes" : "no")},
           {"synthesizer-rank", int64_t{6}}}};
}
std::shared_ptr<const AttentionLayer> make(const std::string& logits, bool has_dot, Device device, uint64_t seed = 1,
                                           int64_t max_length = longest) {
  return make_attention(config(logits, has_dot), {heads, e, false, width, max_length},
                        {.fixed = Key{}, .init = Key{seed}}, device);
}

template <class F>
void for_each_form(F f) {
  for (const std::string logits : {"random", "factorised", "dense"})
    for (const bool has_dot : {true, false})
      for (const Device device : devices()) {
        CAPTURE(logits);
        CAPTURE(has_dot);
        CAPTURE(name(device));
        f(Form{logits, has_dot, device, make(logits, has_dot, device)});
      }
}

Tensor sequences(uint64_t seed, Device device) {
  return random_tensor(Shape{batch, length, heads, e}, seed, -2, 2, device);
}
Tensor layer_input(Device device) { return random_tensor(Shape{batch, length, width}, 4, -2, 2, device); }

// The numbers of what the layer has learned, by name.
std::vector<double> learned(const Form& form, const std::string& name) {
  for (const NamedTensor& parameter : form.layer->parameters())
    if (parameter.name == name) return doubles(parameter.tensor);
  FAIL("there is no parameter " << name);
  return {};
}

// s_ij of sequence n and a head, by the definition.
double synthesized(const Form& form, const std::vector<double>& x, int64_t n, int64_t head, int64_t i, int64_t j) {
  const auto at = [](int64_t position, int64_t h, int64_t c, int64_t columns) {  // of [max_length,H,columns]
    return static_cast<size_t>((position * heads + h) * columns + c);
  };
  double sum = 0;
  if (form.logits == "random") return learned(form, "logits")[static_cast<size_t>((head * longest + i) * longest + j)];
  const std::vector<double> c = learned(form, "key_factors");
  if (form.logits == "factorised") {
    const std::vector<double> r = learned(form, "query_factors");
    for (int64_t k = 0; k < 6; ++k) sum += r[at(i, head, k, 6)] * c[at(j, head, k, 6)];
    return sum;
  }
  const std::vector<double> w = learned(form, "hidden.weight"), b = learned(form, "hidden.bias");
  for (int64_t k = 0; k < e; ++k) {
    double hidden = b[static_cast<size_t>(head * e + k)];
    for (int64_t d = 0; d < width; ++d)
      hidden +=
          w[static_cast<size_t>((head * e + k) * width + d)] * x[static_cast<size_t>((n * length + i) * width + d)];
    sum += std::max(hidden, 0.0) * c[at(j, head, k, e)];
  }
  return sum;
}

}  // namespace

TEST_CASE("synthesizer: each form of the logits, with and without the dot product, equals its definition") {
  for_each_form([](const Form& form) {
    const Tensor q = sequences(1, form.device), k = sequences(2, form.device), v = sequences(3, form.device);
    const Tensor input = layer_input(form.device);
    const std::vector<int32_t> lengths{4, length};
    const Tensor y = (*form.layer)(q, k, v, {.lengths = Indices(Shape{batch}, lengths, form.device), .input = input});
    const auto qs = doubles(q), ks = doubles(k), vs = doubles(v), xs = doubles(input);
    std::vector<double> expected(qs.size(), 0);
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t head = 0; head < heads; ++head)
        for (int64_t i = 0; i < length; ++i) {
          const auto row = [&](int64_t t) { return static_cast<size_t>(((n * length + t) * heads + head) * e); };
          std::vector<double> weights;
          double total = 0;
          for (int64_t j = 0; j < lengths[static_cast<size_t>(n)]; ++j) {
            double logit = synthesized(form, xs, n, head, i, j);
            for (size_t c = 0; form.has_dot && c < e; ++c)
              logit += qs[row(i) + c] * ks[row(j) + c] / std::sqrt(1.0 * e);
            weights.push_back(std::exp(logit));
            total += weights.back();
          }
          for (size_t c = 0; c < e; ++c)
            for (size_t j = 0; j < weights.size(); ++j)
              expected[row(i) + c] += weights[j] / total * vs[row(static_cast<int64_t>(j)) + c];
        }
    check_close(y, expected, reduction);
  });
}

TEST_CASE("synthesizer: four-point gradients of q, k, v, what is learned and, if dense, the layer's input") {
  for_each_form([](const Form& form) {
    std::vector<Tensor> inputs{sequences(1, form.device), sequences(2, form.device), sequences(3, form.device)};
    std::vector<Tensor> own, initial;
    for (const NamedTensor& parameter : form.layer->parameters()) {
      Tensor x = parameter.tensor;
      if (parameter.name == "hidden.weight") assign(x, scale(x, 0.01f));  // biases keep relu off its kink
      if (parameter.name == "hidden.bias") assign(x, random_tensor(x.shape(), 9, 0.3f, 0.6f));
      own.push_back(x);
      initial.push_back(clone(x));
      inputs.push_back(x);
    }
    if (form.logits == "dense") inputs.push_back(layer_input(form.device));
    check_gradients(
        [&](const std::vector<Tensor>& in) {
          for (size_t i = 0; i < own.size(); ++i)
            assign(own[i], in[3 + i].id() == own[i].id() ? initial[i] : in[3 + i]);
          return (*form.layer)(in[0], in[1], in[2], {.input = in.back()});
        },
        inputs);
  });
}

TEST_CASE("synthesizer: what is learned has its shape, and begins with other numbers for another key") {
  for_each_form([](const Form& form) {
    const auto other = make(form.logits, form.has_dot, form.device, 2);
    for (size_t i = 0; i < form.layer->parameters().size(); ++i) {
      const NamedTensor own = form.layer->parameters()[i];
      CHECK(own.tensor.wants_grad());
      CHECK(own.tensor.to_vector() != other->parameters()[i].tensor.to_vector());
    }
  });
  CHECK_EQ(make("random", true, Device::cpu)->parameters()[0].tensor.shape(), Shape{heads, longest, longest});
  CHECK_EQ(make("factorised", true, Device::cpu)->parameters()[0].tensor.shape(), Shape{longest, heads, 6});
  CHECK_EQ(make("dense", true, Device::cpu)->parameters()[0].tensor.shape(), Shape{heads * e, width});
}

TEST_CASE("synthesizer names what it cannot do") {
  check_fails([] { make("random", true, Device::cpu, 1, 0); },
              "synthesizer learns logits of positions and needs max_length");
  const Tensor x = sequences(1, Device::cpu), half = Tensor::full({batch, 5, heads, e}, 0);
  const auto layer = make("dense", true, Device::cpu);
  const auto short_layer = make("factorised", false, Device::cpu, 1, 5);
  check_fails([&] { (*short_layer)(x, x, x, {}); },
              "synthesizer has learned logits of 5 positions, and a sequence has 6");
  check_fails([&] { (*layer)(x, half, half, {}); }, "synthesizer: 6 queries and 5 keys are not of one sequence");
  check_fails([&] { (*layer)(x, x, x, {}); }, "the dense synthesizer needs the layer's input");
}
