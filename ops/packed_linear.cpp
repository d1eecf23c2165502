// Linear layers with packed weights, for few rows: decoding. They have no gradient.
#include <algorithm>
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/elementwise.h"
#include "ops/kernels/linear.h"
#include "ops/linear.h"

namespace runnel {

PackedLinear::PackedLinear(const Tensor& w, const Tensor& b) : w_(w), b_(b) {
  refuse_gradient("linear, packed", "w", w);
  refuse_gradient("linear, packed", "b", b);
  check(w.shape().rank() == 2, "linear: w ", w.shape(), " is not a matrix");
  check(b.shape() == Shape{w.shape()[0]}, "linear: b ", b.shape(), " does not match w ", w.shape());
  const int64_t out = w.shape()[0], in = w.shape()[1];
  if (w.device() != Device::cpu || in == 0) return;
  precision_ = precision();
  panels_ = Tensor(Shape{packed_linear_size(out, in, precision_)});
  CPU_DISPATCH(pack_linear(panels_.data(), w.data(), out, in, precision_));
}

std::vector<Tensor> linear(const Tensor& x, std::span<const PackedLinear> layers, Activation activation) {
  refuse_gradient("linear, packed", "x", x);
  std::vector<Tensor> y, plain_w, plain_b;
  std::vector<PackedLayer> packed;
  y.reserve(layers.size()), packed.reserve(layers.size());
  for (const PackedLinear& layer : layers) {
    const Shape& w = layer.w_.shape();
    device_of("linear", x, layer.w_);
    check(x.shape().rank() >= 1 && x.shape()[-1] == w[1], "linear: x ", x.shape(), " does not match w ", w);
    if (!layer.panels_) {
      plain_w.push_back(layer.w_);
      plain_b.push_back(layer.b_);
      continue;
    }
    y.emplace_back(x.shape().with_last(w[0]));
    packed.push_back({y.back().data(), layer.panels_.data(), layer.b_.data(), w[0]});
  }
  const auto is_like_the_first = [&](const Tensor& w) { return w.shape() == plain_w[0].shape(); };
  if (!plain_w.empty() && std::all_of(plain_w.begin(), plain_w.end(), is_like_the_first))
    return linear(x, plain_w, plain_b, activation);
  for (size_t i = 0; i < plain_w.size(); ++i) y.push_back(linear(x, plain_w[i], plain_b[i], activation));
  if (packed.empty() || x.size() == 0) return y;
  const int64_t in = x.shape()[-1];
  const bool gelus = activation == Activation::gelu;  // which the kernel lacks
  CPU_DISPATCH(packed_linear(packed.data(), std::ssize(packed), x.data(), x.size() / in, in, layers[0].precision_,
                             gelus ? Activation::none : activation));
  if (gelus)
    for (Tensor& own : y) own = gelu(own);
  return y;
}

}  // namespace runnel
