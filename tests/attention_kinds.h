// Small layers of every kind of attention, and inputs for them.
#pragma once
#include <memory>

#include "models/attention_kinds.h"
#include "tests/check.h"

namespace runnel::test {

inline constexpr int64_t batch = 2, length = 13, heads = 2, e = 4;
// With this init no convolution makes a key that is nearly 0: its division by its length bends too much for
// differences.
inline constexpr AttentionSeeds layer_keys{.fixed = Key{5}, .init = Key{8}};

constexpr AttentionShape shape(bool causal) { return {heads, e, causal, heads * e, length}; }

struct KindCase {
  const AttentionKind* kind;
  bool causal;
  Device device;
  std::shared_ptr<const AttentionLayer> layer;
};

// Sizes for short sequences; each kind takes what is its own.
inline AttentionConfig small(const AttentionKind& kind) {
  return {kind.name,
          {{"rounds", int64_t{2}},
           {"buckets", int64_t{2}},
           {"chunk", int64_t{16}},
           {"features", int64_t{6}},
           {"local-block", int64_t{4}},
           {"stride", int64_t{5}},
           {"summary", int64_t{2}},
           {"bigbird-block", int64_t{2}},
           {"bigbird-random", int64_t{1}},
           {"longformer-window", int64_t{8}},
           {"longformer-global", int64_t{2}},
           {"linformer-rank", int64_t{3}},
           {"sinkhorn-block", int64_t{4}},
           {"synthesizer-rank", int64_t{3}}}};
}

template <class F>
void for_each_form(F f) {
  for (const AttentionKind* kind : attention_kinds())
    for (const bool causal : {true, false})
      for (const Device device : devices()) {
        if (causal ? !kind->causal : !kind->full) continue;
        CAPTURE(kind->name);
        CAPTURE(causal);
        CAPTURE(name(device));
        f(KindCase{kind, causal, device, make_attention(small(*kind), shape(causal), layer_keys, device)});
      }
}

// Offset, so that small changes move no query of lsh into another bucket, and off the kinks of feature maps.
inline Tensor queries(uint64_t seed, Device device) {
  return random_tensor(Shape{batch, length, heads, e}, seed, 0.8f, 1.2f, device);
}
inline Tensor values(uint64_t seed, Device device) {
  return random_tensor(Shape{batch, length, heads, e}, seed, -1, 1, device);
}

inline Tensor layer_input(Device device) { return random_tensor(Shape{batch, length, heads * e}, 4, 0.3f, 1, device); }

}  // namespace runnel::test
