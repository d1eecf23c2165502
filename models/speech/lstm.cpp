#include "models/speech/lstm.h"

#include <cmath>

#include "engine/check.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/speech/lstm.h"

namespace runnel {

Lstm::Lstm(const LstmConfig& c, Key init, Device device) : config(c) {
  check(c.input_width > 0 && c.width > 0 && c.layers > 0, "lstm: input_width, width and layers must be positive");
  check(c.dropout >= 0 && c.dropout < 1, "lstm: dropout ", c.dropout, " is not in [0, 1)");
  const float bound = 1 / std::sqrt(static_cast<float>(c.width));
  for (int64_t n = 0; n < c.layers; ++n) {
    const int64_t in = n == 0 ? c.input_width : c.output_width();
    std::vector<Direction> directions;
    for (uint64_t d = 0; d < (c.bidirectional ? 2 : 1); ++d) {
      const Key key = init.fold(static_cast<uint64_t>(n)).fold(d);
      const auto uniform = [&](uint64_t number, const Shape& shape) {
        return random_uniform(shape, bound, key.fold(number), device);
      };
      directions.push_back({uniform(0, {4 * c.width, in}), uniform(1, {4 * c.width, c.width}),
                            uniform(2, {4 * c.width}), uniform(3, {4 * c.width})});
    }
    layers.push_back(std::move(directions));
  }
}

Tensor Lstm::operator()(Tensor x, const Indices& lengths, std::optional<Key> key) const {
  check(x.shape().rank() == 3 && x.shape()[2] == config.input_width, "lstm: x ", x.shape(), " is not [B,T,",
        config.input_width, "]");
  const float p = key ? static_cast<float>(config.dropout) : 0;
  for (size_t n = 0; n < layers.size(); ++n) {
    if (n > 0 && p > 0) x = dropout(x, {p, key->fold(n)});
    std::vector<Tensor> of_input, biases, of_state;
    for (const Direction& d : layers[n]) {
      of_input.push_back(d.weight_ih);
      biases.push_back(add(d.bias_ih, d.bias_hh));
      of_state.push_back(d.weight_hh);
    }
    x = lstm(linear(x, of_input, biases), of_state, lengths).y;
  }
  return x;
}

void Lstm::append_parameters(Parameters& all, const std::string& prefix) const {
  for (size_t n = 0; n < layers.size(); ++n)
    for (size_t d = 0; d < layers[n].size(); ++d) {
      const Direction& own = layers[n][d];
      const auto append_one = [&](const char* name, const Tensor& tensor) {
        all.push_back({prefix + "." + name + "_l" + std::to_string(n) + (d == 0 ? "" : "_reverse"), tensor});
      };
      append_one("weight_ih", own.weight_ih);
      append_one("weight_hh", own.weight_hh);
      append_one("bias_ih", own.bias_ih);
      append_one("bias_hh", own.bias_hh);
    }
}

}  // namespace runnel
