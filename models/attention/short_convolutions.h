// A short causal convolution of the queries, keys and values of a layer, each channel by itself: what a position looks
// for, and what it is found by, then also depend on the few positions before it.
#pragma once
#include <array>
#include <span>
#include <string>

#include "models/attention_kinds.h"

namespace runnel {

struct ShortConvolutions {
  std::vector<Tensor> weights;  // of q, k and v: [H E,K] each; empty: there is no convolution
  bool silu = false;            // after each

  ShortConvolutions(const AttentionShape& shape, int64_t positions, bool silu, Key init, Device device);

  using Projections = std::array<Tensor, 3>;  // q, k and v: [B,L,H,E]
  // `before`: the last K - 1 rows of each before these, or empty; the last of these take their place.
  Projections operator()(const Projections& qkv, std::span<Tensor> before = {}) const;
  Projections step(Projections qkv, std::span<Tensor> before) const;  // L = 1, updates `before` in place

  void append_parameters(Parameters& all) const;
  void append_memory(std::vector<Tensor>& memory, int64_t batch,
                     Device device) const;  // `before` of the first position

  // The setting of all kinds that have them.
  static AttentionKind::Option option();
  // Its value, where -1 stands for that of the kind's paper.
  static int64_t positions(const SettingValues& values, int64_t published);
};

}  // namespace runnel
