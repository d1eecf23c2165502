#include "models/local_heads.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/check.h"

namespace runnel {
namespace {

// A linear layer's weight and bias on the host, to be changed and then put back in their place.
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
    const auto put = [](Tensor& to, const std::vector<float>& from) {
      copy(to.data(), to.device(), from.data(), Device::cpu, from.size() * sizeof(float));
    };
    put(layer.weight, weight);
    put(layer.bias, bias);
  }
};

}  // namespace

void init_for_images(AutoregressiveTransformer& model, Key init) {
  const AutoregressiveConfig& c = model.config;
  model.embedding = level_embedding(c.vocabulary, c.encoder.width() / 2, init.fold(0), model.device());
  for (int64_t n = 0; n + 1 < c.encoder.layers; ++n) {
    EncoderLayer& layer = model.encoder.layers[static_cast<size_t>(n)];
    if (layer.attention->has_exponential_features()) init_local_heads(layer, n, c);
  }
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

void init_local_heads(EncoderLayer& layer, int64_t n, const AutoregressiveConfig& config) {
  constexpr double sharpness = 6, recency = 0.7;
  const Grid& grid = config.grid;
  check(grid.row > 0, "init_local_heads: the length of a row is not known");
  const GridParts parts(config.encoder.width() / 2, grid);
  const int64_t d = config.encoder.width(), head_dim = config.encoder.head_dim, column_code = d / 2,
                row_code = column_code + parts.column;
  const int64_t channel_code = row_code + parts.row;
  const double columns = static_cast<double>(grid.row / grid.channels);
  const double byte = 1 / static_cast<double>(grid.channels);  // in columns
  const double last_row = static_cast<double>((config.max_length - 1) / grid.row);
  // The sine that is straight enough over all rows, and steep enough to need no large weight.
  int64_t slow = 0;
  while (2 * slow + 3 < parts.row && encoding_frequency(slow, parts.row) * last_row > 1.5) ++slow;
  const double w_row = encoding_frequency(slow, parts.row);

  Values query{layer.query}, key{layer.key};
  for (int64_t out = 0; out < d; ++out) {
    const int64_t head = out / head_dim, e = out % head_dim;
    const double centre =
        (columns - 1) * static_cast<double>(e) / static_cast<double>(std::max<int64_t>(head_dim - 1, 1));
    const bool is_grey = grid.channels == 1;
    constexpr double grey_shifts[] = {0, 1, -1, -2}, colour_shifts[] = {0, -1, 1};
    const double channel = is_grey ? 0 : static_cast<double>(head % 3);  // that is looked for
    const double shift = is_grey ? grey_shifts[head % 4] : colour_shifts[(n + head / 3) % 3];
    // Relative to a byte's column, in which its channel counts too: the middle of the pixel that is asked for.
    const double wanted = byte + shift - (1 - byte) / 2, own = -channel * byte;
    for (Values* values : {&query, &key}) {
      const auto at = static_cast<size_t>(out);
      std::fill_n(values->weight.begin() + out * d + column_code, d - column_code, 0.0f);
      values->bias[at] = 0;
      // Those that change over a row. The fastest are sharp and repeat themselves, the slower ones tell the repeats
      // apart.
      for (int64_t i = 0; 2 * i + 1 < parts.column; ++i) {
        const double w = encoding_frequency(i, parts.column);
        if (w * columns < 2) break;
        values->add_cosine(out, column_code, i, sharpness, w * ((values == &query ? wanted : own) - centre));
        values->bias[at] -= static_cast<float>(sharpness);
      }
    }
    if (parts.channel) {
      key.add_cosine(out, channel_code, 0, sharpness, -channel_angle * channel);
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
