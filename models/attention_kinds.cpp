#include "models/attention_kinds.h"

#include "engine/check.h"

namespace runnel {

// The core's kinds, in the order of --help, and behind them those of packages: each has models/<package>/kinds.cpp.
namespace kinds {
extern const AttentionKind linear, softmax, lsh, retention, gla, deltanet, gated_deltanet, kda;
}
namespace packages {
#define PACKAGE(name) std::vector<const AttentionKind*> name##_kinds();
RUNNEL_PACKAGES_WITH_KINDS  // from CMakeLists.txt: PACKAGE(lra)
#undef PACKAGE
}  // namespace packages

std::span<const AttentionKind* const> attention_kinds() {
  static const std::vector<const AttentionKind*> all = [] {
    std::vector<const AttentionKind*> list{&kinds::linear,         &kinds::softmax, &kinds::lsh,
                                           &kinds::retention,      &kinds::gla,     &kinds::deltanet,
                                           &kinds::gated_deltanet, &kinds::kda};
#define PACKAGE(name) \
  for (const AttentionKind* kind : packages::name##_kinds()) list.push_back(kind);
    RUNNEL_PACKAGES_WITH_KINDS
#undef PACKAGE
    return list;
  }();
  return all;
}

const AttentionKind& attention_kind(const std::string& name) {
  std::string names;
  for (const AttentionKind* kind : attention_kinds()) {
    if (kind->name == name) return *kind;
    names += (names.empty() ? "" : ", ") + kind->name;
  }
  fail("attention: ", name, " is none of ", names);
}

bool has_form(const AttentionKind& kind, Forms form) {
  return (kind.causal && form != Forms::full) || (kind.full && form != Forms::causal);
}

Choices attention_names(Forms form) {
  Choices names;
  for (const AttentionKind* kind : attention_kinds())
    if (has_form(*kind, form)) names.push_back(kind->name);
  return names;
}

SettingValues attention_values(const AttentionConfig& config) {
  SettingValues values;
  for (const AttentionKind::Option& option : attention_kind(config.kind).options) {
    const auto given = config.values.find(option.name);
    values[option.name] = given == config.values.end() ? option.value : given->second;
    check(values[option.name].index() == option.value.index(), "attention: ", config.kind, "'s ", option.name,
          " has another type");
  }
  return values;
}

std::shared_ptr<const AttentionLayer> make_attention(const AttentionConfig& config, const AttentionShape& shape,
                                                     const AttentionSeeds& keys, Device device) {
  const AttentionKind& kind = attention_kind(config.kind);
  check(shape.causal ? kind.causal : kind.full, "attention: ", kind.name, " has no ",
        shape.causal ? "causal form" : "form in which every query sees all keys");
  const SettingValues values = attention_values(config);
  for (const AttentionKind::Option& option : kind.options)
    std::visit(
        [&](const auto& value) {
          const std::string problem = option.allowed.problem_of(value);
          check(problem.empty(), "attention: ", kind.name, "'s ", option.name, ": ", value, " ", problem);
        },
        values.at(option.name));
  return kind.make(shape, values, keys, device);
}

}  // namespace runnel
