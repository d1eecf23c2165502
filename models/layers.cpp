#include "models/layers.h"

#include <cmath>

namespace runnel {

Linear random_linear(int64_t out, int64_t in, Key key, Device device) {
  const float bound = 1 / std::sqrt(static_cast<float>(in));
  const auto draw = [bound, device](Shape shape, Key from) {
    std::vector<float> values(static_cast<size_t>(shape.size()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = bound * (2 * from.uniform(i) - 1);
    return Tensor(shape, values, device).set_wants_grad();
  };
  return {draw(Shape{out, in}, key.fold(0)), draw(Shape{out}, key.fold(1))};
}

void stack(const std::vector<Linear*>& layers) {
  std::vector<Tensor> w, b;
  for (const Linear* layer : layers) {
    w.push_back(layer->weight);
    b.push_back(layer->bias);
  }
  w = stacked(w).parts();
  b = stacked(b).parts();
  for (size_t i = 0; i < layers.size(); ++i) *layers[i] = {w[i].set_wants_grad(), b[i].set_wants_grad()};
}

LayerNorm unit_layer_norm(int64_t width, Device device) {
  return {Tensor::full(Shape{width}, 1, device).set_wants_grad(),
          Tensor::full(Shape{width}, 0, device).set_wants_grad()};
}

Tensor random_embedding(int64_t vocabulary, int64_t width, Key key, Device device, float deviation) {
  std::vector<float> values(static_cast<size_t>(vocabulary * width));
  for (size_t i = 0; i < values.size(); ++i) values[i] = deviation * key.normal(i);
  return Tensor(Shape{vocabulary, width}, values, device).set_wants_grad();
}

}  // namespace runnel
