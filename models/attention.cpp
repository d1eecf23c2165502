#include "models/attention.h"

#include "engine/check.h"

namespace runnel {

// Every kind, in the order of --help: models/attention/<kind>.cpp defines kinds::<kind>.
// clang-format off
#define ATTENTION_KINDS(X) \
  X(linear) X(softmax) X(lsh) X(performer) X(local) X(sparse) X(longformer) X(bigbird) X(linformer) X(sinkhorn) \
  X(synthesizer)
// clang-format on

namespace kinds {
#define DECLARE(kind) extern const AttentionKind kind;
ATTENTION_KINDS(DECLARE)
}  // namespace kinds

std::span<const AttentionKind* const> attention_kinds() {
#define ADDRESS(kind) &kinds::kind,
  static constexpr const AttentionKind* all[] = {ATTENTION_KINDS(ADDRESS)};
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

Choices attention_names(bool causal) {
  Choices names;
  for (const AttentionKind* kind : attention_kinds())
    if (causal ? kind->causal : kind->full) names.push_back(kind->name);
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

namespace {

void append_settings(Settings& list, const AttentionKind& kind, AttentionConfig& config) {
  for (const AttentionKind::Option& option : kind.options) {
    SettingValue& value = config.values.try_emplace(option.name, option.value).first->second;
    std::visit(
        [&](auto& x) {
          list.push_back({option.name, &x, option.allowed, option.help, OldFiles::may_lack_it});
        },
        value);
  }
}

}  // namespace

Settings attention_settings(AttentionConfig& config) {
  Settings list;
  append_settings(list, attention_kind(config.kind), config);
  return list;
}

Settings all_attention_settings(AttentionConfig& config, bool causal) {
  Settings list;
  for (const AttentionKind* kind : attention_kinds())
    if (causal ? kind->causal : kind->full) append_settings(list, *kind, config);
  return list;
}

std::shared_ptr<const AttentionLayer> make_attention(const AttentionConfig& config, const AttentionShape& shape,
                                                     const AttentionSeeds& keys, Device device) {
  const AttentionKind& kind = attention_kind(config.kind);
  check(shape.causal ? kind.causal : kind.full, "attention: ", kind.name, " has no ",
        shape.causal ? "causal form" : "form in which every query sees all keys");
  AttentionConfig checked{config.kind, attention_values(config)};
  for (const Setting& setting : attention_settings(checked)) {
    const std::string problem = problem_of(setting);
    check(problem.empty(), "attention: ", kind.name, "'s ", setting.name, ": ", text_of(setting), " ", problem);
  }
  return kind.make(shape, checked.values, keys, device);
}

}  // namespace runnel
