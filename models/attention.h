// Kinds of attention. A kind is one file in models/attention/ and one line in attention_kinds(): its name, what it can
// do, its own settings, and a maker of layers. Nothing else in the program knows one kind from another.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/random.h"
#include "engine/tensor.h"
#include "models/allowed.h"
#include "models/parameters.h"
#include "ops/numerics.h"

namespace runnel {

struct AttentionState;  // ops/linear_attention.h

// Per-call inputs besides q, k and v.
struct AttentionContext {
  Indices lengths = {};         // [B]: keys j >= lengths[b] are padding; empty: there is none
  std::optional<Key> key = {};  // randomness of a training step; none in evaluation
  Tensor input = {};            // [B,L,D]: the layer's input, before the projections; empty where a kind cannot need it
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
  // Attention of the next position, number position[0], to all up to it, which then includes it. No gradient.
  virtual Tensor step(const Tensor& q, const Tensor& k, const Tensor& v,
                      const Indices& position) = 0;  // [B,1,H,E] [B,1,H,E] [B,1,H,M] [1] -> [B,1,H,M]
  // A copy in which sequence i is sequence rows[i] of this one.
  virtual std::unique_ptr<DecodeState> select(const Indices& rows) const = 0;
  virtual int64_t bytes() const = 0;  // of memory, for the whole batch
  // S and Z (eq. 18, 19), for kinds that keep them; else null.
  virtual const AttentionState* recurrent_state() const { return nullptr; }
};

// One layer's attention, from q, k, v to the values' weighted means, with its parameters beyond the four projections.
class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;
  // k is empty for kinds with shared_query_key. L and S differ only if the layer is not causal.
  virtual Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                            const AttentionContext& context) const = 0;  // [B,L,H,E] [B,S,H,E] [B,S,H,M] -> [B,L,H,M]
  virtual Parameters parameters() const { return {}; }
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

struct AttentionKind {
  struct Option {
    std::string name;
    SettingValue value;  // the default
    Allowed allowed;
    std::string help;
  };
  struct Variant {
    std::string name;  // as the paper's figures call it
    SettingValues values;
  };

  std::string name, help;
  std::string paper;              // where its definition stands
  bool causal, full;              // which forms it has
  bool shared_query_key;          // keys are the queries: there is no key projection
  std::vector<Option> options;    // its own settings; names are unique among all kinds
  std::vector<Variant> variants;  // what `bench attention` compares; empty: itself with its defaults
  std::unique_ptr<AttentionLayer> (*make)(const AttentionShape& shape, const SettingValues& values,
                                          const AttentionSeeds& keys, Device device);
};

std::span<const AttentionKind* const> attention_kinds();
const AttentionKind& attention_kind(const std::string& name);  // throws if there is none of this name
Choices attention_names(bool causal);                          // of the kinds that have this form

// A kind and its settings; those not named have the kind's defaults.
struct AttentionConfig {
  std::string kind = "linear";
  SettingValues values = {};
};
// All values of the kind's settings. Throws if `values` has one of another type.
SettingValues attention_values(const AttentionConfig& config);
// Throws if the kind has no such form, or cannot have these settings.
std::shared_ptr<const AttentionLayer> make_attention(const AttentionConfig& config, const AttentionShape& shape,
                                                     const AttentionSeeds& keys, Device device);

}  // namespace runnel
