// Kinds of attention. A kind is one file in models/attention/ and one line in attention_kinds(): its name, what it can
// do, its own settings, and a maker of layers. Nothing else in the program knows one kind from another.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/allowed.h"
#include "models/attention.h"

namespace runnel {

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
  std::vector<Option> options;    // its settings; those of one name in several kinds are the same
  std::vector<Variant> variants;  // what `bench attention` compares; empty: itself with its defaults
  std::unique_ptr<AttentionLayer> (*make)(const AttentionShape& shape, const SettingValues& values,
                                          const AttentionSeeds& keys, Device device);
};

std::span<const AttentionKind* const> attention_kinds();
const AttentionKind& attention_kind(const std::string& name);  // throws if there is none of this name
enum class Forms { causal, full, either };
bool has_form(const AttentionKind& kind, Forms form);
Choices attention_names(Forms form);  // of the kinds that have it

// All values of the kind's settings. Throws if `values` has one of another type.
SettingValues attention_values(const AttentionConfig& config);
}  // namespace runnel
