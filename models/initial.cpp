#include "models/initial.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/check.h"

namespace runnel {
namespace {

// The position code's frequency in radians per position: its numbers 2i and 2i + 1 of `width` are sine and cosine.
double frequency(int64_t i, int64_t width) {
  return std::pow(10000.0, -static_cast<double>(2 * i) / static_cast<double>(width));
}

// A linear layer's weight and bias on their way to being set.
struct Values {
  Linear& layer;
  int64_t in = layer.weight.shape()[1];
  std::vector<float> weight = layer.weight.to_vector(), bias = layer.bias.to_vector();

  // y[out] += factor * cos(w x + phase) for the position x whose code begins at input `code`, w being its frequency i.
  void add_cosine(int64_t out, int64_t code, int64_t i, double factor, double phase) {
    float* const row = weight.data() + out * in + code + 2 * i;
    row[0] -= static_cast<float>(factor * std::sin(phase));
    row[1] += static_cast<float>(factor * std::cos(phase));
  }
  void set() {
    const auto like = [](const Tensor& old, const std::vector<float>& values) {
      return Tensor(old.shape(), values, old.device()).set_wants_grad();
    };
    layer = {like(layer.weight, weight), like(layer.bias, bias)};
  }
};

}  // namespace

Linear random_linear(int64_t out, int64_t in, Key key, Device device) {
  const float bound = 1 / std::sqrt(static_cast<float>(in));
  const auto draw = [bound, device](Shape shape, Key from) {
    std::vector<float> values(static_cast<size_t>(shape.size()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = bound * (2 * from.uniform(i) - 1);
    return Tensor(shape, values, device).set_wants_grad();
  };
  return {draw(Shape{out, in}, key.fold(0)), draw(Shape{out}, key.fold(1))};
}

LayerNorm plain_layer_norm(int64_t width, Device device) {
  return {Tensor::full(Shape{width}, 1, device).set_wants_grad(),
          Tensor::full(Shape{width}, 0, device).set_wants_grad()};
}

Tensor random_embedding(int64_t vocabulary, int64_t width, Key key, Device device) {
  std::vector<float> values(static_cast<size_t>(vocabulary * width));
  for (size_t i = 0; i < values.size(); ++i) values[i] = key.normal(i);
  return Tensor(Shape{vocabulary, width}, values, device).set_wants_grad();
}

Tensor level_embedding(int64_t levels, int64_t width, Device device) {
  constexpr double shortest = 4, longest = 512;  // periods
  std::vector<float> values;
  for (int64_t level = 0; level < levels; ++level)
    for (int64_t j = 0; j < width; ++j) {
      const double part = static_cast<double>(2 * (j / 2)) / static_cast<double>(std::max<int64_t>(width - 2, 1));
      const double angle =
          2 * std::numbers::pi * static_cast<double>(level) / (shortest * std::pow(longest / shortest, part));
      values.push_back(static_cast<float>(std::numbers::sqrt2 * (j % 2 ? std::cos(angle) : std::sin(angle))));
    }
  return Tensor(Shape{levels, width}, values, device).set_wants_grad();
}

Tensor position_code(int64_t length, int64_t width, int64_t row, Device device) {
  const int64_t part = row ? width / 2 : width;
  std::vector<float> values;
  values.reserve(static_cast<size_t>(length * width));
  const auto append = [&](int64_t position, int64_t numbers) {
    for (int64_t j = 0; j < numbers; ++j) {
      const double angle = static_cast<double>(position) * frequency(j / 2, numbers);
      values.push_back(static_cast<float>(j % 2 ? std::cos(angle) : std::sin(angle)));
    }
  };
  for (int64_t l = 0; l < length; ++l) {
    append(row ? l % row : l, part);
    if (row) append(l / row, width - part);
  }
  return Tensor(Shape{length, width}, values, device);
}

void look_above(EncoderLayer& layer, const TransformerConfig& config) {
  constexpr double sharpness = 6, recency = 0.7, shifts[] = {0, 1, -1};
  check(config.row > 0, "look_above: the length of a row is not known");
  check(config.attention == Attention::linear, "look_above: ", name(config.attention), " attention has no features");
  const int64_t d = config.width(), column_code = d / 2, row_code = d / 2 + d / 4;
  const int64_t columns_width = row_code - column_code, rows_width = d - row_code;
  const double last_row = static_cast<double>((config.max_length - 1) / config.row);
  // The sine that is straight enough over all rows, and steep enough to need no large weight.
  int64_t slow = 0;
  while (2 * slow + 3 < rows_width && frequency(slow, rows_width) * last_row > 1.5) ++slow;
  const double w_row = frequency(slow, rows_width);

  Values query{layer.query}, key{layer.key};
  for (int64_t n = 0; n < d; ++n) {
    const int64_t head = n / config.head_dim, e = n % config.head_dim;
    const double centre =
        static_cast<double>(config.row - 1) * (static_cast<double>(e) + 0.5) / static_cast<double>(config.head_dim);
    const double wanted = 1 + shifts[head % 3];
    for (Values* values : {&query, &key}) {
      const auto at = static_cast<size_t>(n);
      std::fill_n(values->weight.begin() + n * d + column_code, d - column_code, 0.0f);
      values->bias[at] = 0;
      // Those that change over a row. The fastest are sharp and repeat themselves, the slower ones tell the repeats
      // apart.
      for (int64_t i = 0; 2 * i + 1 < columns_width; ++i) {
        const double w = frequency(i, columns_width);
        if (w * static_cast<double>(config.row) < 2) break;
        values->add_cosine(n, column_code, i, sharpness, w * ((values == &query ? wanted : 0) - centre));
        values->bias[at] -= static_cast<float>(sharpness);
      }
    }
    if (rows_width < 2) continue;
    const double steep = recency / w_row, middle = last_row / 2;  // sin(x) = cos(x - pi/2)
    key.add_cosine(n, row_code, slow, steep, -w_row * middle - std::numbers::pi / 2);
    key.bias[static_cast<size_t>(n)] -= static_cast<float>(steep * std::sin(w_row * middle));
  }
  query.set();
  key.set();
}

}  // namespace runnel
