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

constexpr double channel_turn = 2 * std::numbers::pi / 3;

// How many numbers of the position code, which has `width`, are of what.
struct PositionParts {
  int64_t column, row, channel;
  PositionParts(int64_t width, int64_t row_length, int64_t channels)
      : column(row_length ? width / 2 : width),
        row(width - column),
        channel(row_length && channels > 1 ? std::min<int64_t>(row, 2) : 0) {
    row -= channel;
  }
};

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

Tensor level_embedding(int64_t vocabulary, int64_t width, Key key, Device device) {
  constexpr double shortest = 4, longest = 512;  // periods
  std::vector<float> values = random_embedding(vocabulary, width, key, Device::cpu).to_vector();
  for (int64_t level = 0; level < std::min<int64_t>(vocabulary, 256); ++level)
    for (int64_t j = 0; j < width; ++j) {
      const double part = static_cast<double>(2 * (j / 2)) / static_cast<double>(std::max<int64_t>(width - 2, 1));
      const double angle =
          2 * std::numbers::pi * static_cast<double>(level) / (shortest * std::pow(longest / shortest, part));
      values[static_cast<size_t>(level * width + j)] =
          static_cast<float>(std::numbers::sqrt2 * (j % 2 ? std::cos(angle) : std::sin(angle)));
    }
  return Tensor(Shape{vocabulary, width}, values, device).set_wants_grad();
}

Tensor position_code(int64_t length, int64_t width, int64_t row, int64_t channels, Device device) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(length * width));
  const auto append = [&](double x, int64_t numbers, double w = 0) {
    for (int64_t j = 0; j < numbers; ++j) {
      const double angle = x * (w != 0 ? w : frequency(j / 2, numbers));
      values.push_back(static_cast<float>(j % 2 ? std::cos(angle) : std::sin(angle)));
    }
  };
  const PositionParts parts(width, row, channels);
  for (int64_t l = 0; l < length; ++l) {
    if (row == 0) {
      append(static_cast<double>(l), width);
      continue;
    }
    append(static_cast<double>(l % row) / static_cast<double>(channels), parts.column);
    append(static_cast<double>(l / row), parts.row);
    append(static_cast<double>(l % channels), parts.channel, channel_turn);
  }
  return Tensor(Shape{length, width}, values, device);
}

void look_above(EncoderLayer& layer, int64_t n, const TransformerConfig& config) {
  constexpr double sharpness = 6, recency = 0.7;
  check(config.row > 0, "look_above: the length of a row is not known");
  check(config.attention == Attention::linear, "look_above: ", name(config.attention), " attention has no features");
  const PositionParts parts(config.width() / 2, config.row, config.channels);
  const int64_t d = config.width(), column_code = d / 2, row_code = column_code + parts.column;
  const int64_t channel_code = row_code + parts.row;
  const double columns = static_cast<double>(config.row / config.channels);
  const double byte = 1 / static_cast<double>(config.channels);  // in columns
  const double last_row = static_cast<double>((config.max_length - 1) / config.row);
  // The sine that is straight enough over all rows, and steep enough to need no large weight.
  int64_t slow = 0;
  while (2 * slow + 3 < parts.row && frequency(slow, parts.row) * last_row > 1.5) ++slow;
  const double w_row = frequency(slow, parts.row);

  Values query{layer.query}, key{layer.key};
  for (int64_t out = 0; out < d; ++out) {
    const int64_t head = out / config.head_dim, e = out % config.head_dim;
    const double centre =
        (columns - 1) * static_cast<double>(e) / static_cast<double>(std::max<int64_t>(config.head_dim - 1, 1));
    const bool grey = config.channels == 1;
    constexpr double grey_shifts[] = {0, 1, -1, -2}, colour_shifts[] = {0, -1, 1};
    const double channel = grey ? 0 : static_cast<double>(head % 3);  // that is looked for
    const double shift = grey ? grey_shifts[head % 4] : colour_shifts[(n + head / 3) % 3];
    // Relative to a byte's column, in which its channel counts too: the middle of the pixel that is asked for.
    const double wanted = byte + shift - (1 - byte) / 2, own = -channel * byte;
    for (Values* values : {&query, &key}) {
      const auto at = static_cast<size_t>(out);
      std::fill_n(values->weight.begin() + out * d + column_code, d - column_code, 0.0f);
      values->bias[at] = 0;
      // Those that change over a row. The fastest are sharp and repeat themselves, the slower ones tell the repeats
      // apart.
      for (int64_t i = 0; 2 * i + 1 < parts.column; ++i) {
        const double w = frequency(i, parts.column);
        if (w * columns < 2) break;
        values->add_cosine(out, column_code, i, sharpness, w * ((values == &query ? wanted : own) - centre));
        values->bias[at] -= static_cast<float>(sharpness);
      }
    }
    if (parts.channel) {
      key.add_cosine(out, channel_code, 0, sharpness, -channel_turn * channel);
      key.bias[static_cast<size_t>(out)] -= static_cast<float>(sharpness);
    }
    if (parts.row < 2) continue;
    const double steep = recency / w_row, middle = last_row / 2;  // sin(x) = cos(x - pi/2)
    key.add_cosine(out, row_code, slow, steep, -w_row * middle - std::numbers::pi / 2);
    key.bias[static_cast<size_t>(out)] -= static_cast<float>(steep * std::sin(w_row * middle));
  }
  query.set();
  key.set();
}

}  // namespace runnel
