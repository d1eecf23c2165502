#include "models/attention/short_convolutions.h"

#include <algorithm>
#include <cmath>

#include "models/attention_kinds.h"
#include "models/layers.h"
#include "ops/causal_convolution.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

Tensor joined_heads(const Tensor& x) {
  const Shape& s = x.shape();
  return reshape(x, Shape{s[0], s[1], s[2] * s[3]});
}

}  // namespace

ShortConvolutions::ShortConvolutions(const AttentionShape& shape, int64_t positions, bool with_silu, Key init,
                                     Device device)
    : silu(with_silu) {
  for (uint64_t n = 0; positions > 0 && n < 3; ++n)
    weights.push_back(random_uniform(Shape{shape.heads * shape.head_dim, positions},
                                     1 / std::sqrt(static_cast<float>(positions)), init.fold(n), device));
}

ShortConvolutions::Projections ShortConvolutions::operator()(const Projections& qkv, std::span<Tensor> before) const {
  if (weights.empty()) return qkv;
  Projections result;
  for (size_t n = 0; n < 3; ++n) {
    const Tensor x = joined_heads(qkv[n]);
    const int64_t history = weights[n].shape()[1] - 1, length = x.shape()[1];
    const Tensor earlier = before.empty() ? Tensor() : before[n];
    result[n] = reshape(causal_convolution(x, weights[n], {silu}, earlier), qkv[n].shape());
    if (!earlier) continue;
    const int64_t own = std::min(length, history);  // of the rows that are kept, those of x
    before[n] = slice(concat({earlier, slice(detach(x), 1, length - own, own)}, 1), 1, own, history);
  }
  return result;
}

ShortConvolutions::Projections ShortConvolutions::step(Projections qkv, std::span<Tensor> before) const {
  if (weights.empty()) return qkv;
  for (size_t n = 0; n < 3; ++n)
    qkv[n] = reshape(causal_convolution_step(joined_heads(qkv[n]), weights[n], {silu}, before[n]), qkv[n].shape());
  return qkv;
}

void ShortConvolutions::append_parameters(Parameters& all) const {
  constexpr const char* names[] = {"query", "key", "value"};
  for (size_t n = 0; n < weights.size(); ++n)
    all.push_back({std::string(names[n]) + "_convolution.weight", weights[n]});
}

void ShortConvolutions::append_memory(std::vector<Tensor>& memory, int64_t batch, Device device) const {
  for (const Tensor& weight : weights)
    memory.push_back(Tensor::full(Shape{batch, weight.shape()[1] - 1, weight.shape()[0]}, 0, device));
}

AttentionKind::Option ShortConvolutions::option() {
  return {"convolution", int64_t{-1}, in_range(-1, 16),
          "positions of a short convolution of queries, keys and values; 0: none, -1: as the kind's paper has it (4 of "
          "deltanet, gated-deltanet and kda, none of the others)"};
}

int64_t ShortConvolutions::positions(const SettingValues& values, int64_t published) {
  const int64_t given = std::get<int64_t>(values.at("convolution"));
  return given < 0 ? published : given;
}

}  // namespace runnel
