// What a layer's attention is to the encoder around it, whatever its kind: models/attention_kinds.h lists the kinds.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/random.h"
#include "engine/tensor.h"
#include "models/parameters.h"
#include "ops/linear_attention.h"

namespace runnel {

// Per-call inputs besides q, k and v.
struct AttentionContext {
  Indices lengths = {};         // [B]: keys j >= lengths[b] are padding; empty: there is none
  std::optional<Key> key = {};  // randomness of a training step; none in evaluation
  Tensor input = {};            // [B,L,D]: the layer's input, before the projections; empty where a kind cannot need it
  // What the positions before these left (AttentionLayer::empty_memory); what these leave takes its place. Null: there
  // are none before.
  std::vector<Tensor>* memory = nullptr;
};

// Sizes of a decode state.
struct DecodeOptions {
  int64_t batch, capacity;  // sequences, and the positions of each at most
  Device device;
  Precision precision = Precision::f32;  // of S (eq. 18), for kinds that keep it: f32 or bf16; else ignored
};

// The memory of one layer for decoding: what it keeps of the positions that a batch of sequences has read.
class DecodeState {
 public:
  virtual ~DecodeState() = default;
  // Attention of the next position, number position[0], to all up to it, which then includes it; x is the layer's
  // input. No gradient.
  virtual Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& x,
                      const Indices& position) = 0;  // [B,1,H,E] [B,1,H,E] [B,1,H,M] [B,1,D] [1] -> [B,1,H,M]
  // A copy in which sequence i is sequence rows[i] of this one.
  virtual std::unique_ptr<DecodeState> select(const Indices& rows) const = 0;
  virtual int64_t bytes() const = 0;  // of memory, for the whole batch
  // S and Z (eq. 18, 19), for kinds that keep them.
  virtual std::optional<AttentionState> recurrent_state() const { return {}; }
  // For AttentionContext, to read many positions at once; null: this state is for single positions.
  virtual std::vector<Tensor>* memory() { return nullptr; }
};

// One layer's attention, from q, k, v to the values' weighted means, with its parameters beyond the four projections.
class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;
  // k is empty if queries are the keys. L and S differ only if the layer is not causal.
  virtual Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                            const AttentionContext& context) const = 0;  // [B,L,H,E] [B,S,H,E] [B,S,H,M] -> [B,L,H,M]
  virtual Parameters parameters() const { return {}; }
  virtual bool shares_query_key() const { return false; }  // keys are the queries: there is no key projection
  // What a causal layer keeps of all earlier positions, before the first: zeros, [B,...] each, of the same size for any
  // number of positions. Empty if this kind cannot go on from such a memory.
  virtual std::vector<Tensor> empty_memory(int64_t, Device) const { return {}; }
  // The state before the first position; null if this kind has no incremental form.
  virtual std::unique_ptr<DecodeState> decode(const DecodeOptions&) const { return nullptr; }
  // Whether weights are products of phi(q) and phi(k) with phi(x) = e^x for x <= 0, number by number: then
  // models/local_heads.h knows how to make a head begin on a neighbouring pixel.
  virtual bool has_exponential_features() const { return false; }
};

using SettingValue = std::variant<bool, int64_t, double, std::string>;
using SettingValues = std::map<std::string, SettingValue>;

struct AttentionShape {
  int64_t heads, head_dim;  // H, E = M
  bool causal;
  int64_t width = 0;       // D, of the layer's input
  int64_t max_length = 0;  // the longest sequence
};

struct AttentionSeeds {
  Key fixed;      // randomness of evaluation: the same in every model, so that no checkpoint needs to hold it
  Key init = {};  // of the initial values of its parameters
};

// A kind and its settings; those not named have the kind's defaults.
struct AttentionConfig {
  std::string kind = "linear";
  SettingValues values = {};
};
// Throws if the kind has no such form, or cannot have these settings.
std::shared_ptr<const AttentionLayer> make_attention(const AttentionConfig& config, const AttentionShape& shape,
                                                     const AttentionSeeds& keys, Device device);

}  // namespace runnel
