#include "models/layers.h"

#include <cmath>

#include "ops/shapes.h"

#include "ops/layers.h"
#include "ops/linear.h"

namespace runnel {

Tensor Linear::operator()(const Tensor& x, Activation activation, Dropout dropout) const {
  return linear(x, weight, bias, activation, dropout);
}

Tensor LayerNorm::operator()(const Tensor& x) const { return layer_norm(x, weight, bias); }

Tensor LayerNorm::operator()(const Tensor& x, const Tensor& branch, Dropout dropout) const {
  return add_layer_norm(x, branch, weight, bias, dropout);
}

Tensor random_uniform(const Shape& shape, float bound, Key key, Device device) {
  std::vector<float> values(static_cast<size_t>(shape.size()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = bound * (2 * key.uniform(i) - 1);
  return Tensor(shape, values, device).set_wants_grad();
}

Linear random_linear(int64_t out, int64_t in, Key key, Device device) {
  const float bound = 1 / std::sqrt(static_cast<float>(in));
  return {random_uniform({out, in}, bound, key.fold(0), device), random_uniform({out}, bound, key.fold(1), device)};
}

Tensor concat_shared(const Tensor& x, const Tensor& shared) {
  const Tensor first = slice(shared, 0, 0, x.shape()[1]);
  return concat({x, broadcast(first, first.shape().stacked(x.shape()[0]))}, -1);
}

void stack_parameters(const std::vector<Linear*>& layers) {
  std::vector<Tensor> w, b;
  for (const Linear* layer : layers) {
    w.push_back(detach(layer->weight));
    b.push_back(detach(layer->bias));
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
