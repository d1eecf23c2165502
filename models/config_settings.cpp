#include "models/config_settings.h"
#include "models/attention_kinds.h"

#include <algorithm>

namespace runnel {
namespace {

void append_settings(Settings& list, const AttentionKind& kind, AttentionConfig& config) {
  for (const AttentionKind::Option& option : kind.options) {
    if (std::ranges::find(list, option.name, &Setting::name) != list.end()) continue;  // of several kinds
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

Settings all_attention_settings(AttentionConfig& config, const Choices& kinds) {
  Settings list;
  for (const std::string& kind : kinds) append_settings(list, attention_kind(kind), config);
  return with_topic("attention", list);
}

Settings list(EncoderConfig& c, Forms form) {
  return {
      {"layers", &c.layers, in_range(1, 1024), "encoder layers"},
      {"heads", &c.heads, in_range(1, 1024), "attention heads; must divide --width"},
      {"head_dim", &c.head_dim, in_range(1, 65536), ""},
      {"feed_forward", &c.feed_forward, in_range(1, 1 << 20), "width of the feed-forward layers"},
      {"dropout", &c.dropout, in_range(0, 0.95), "dropout probability"},
      {"gelu", &c.gelu, {}, "", OldFiles::may_lack_it},
      {"attention", &c.attention.kind, one_of(attention_names(form)), "attention mechanism", OldFiles::may_lack_it}};
}

Settings list(AutoregressiveConfig& c) {
  return extended(
      list(c.encoder),
      {{"norm", &c.encoder.norm, one_of({"post", "pre"}), "", OldFiles::may_lack_it},
       {"embedding_dropout", &c.embedding_dropout, in_range(0, 0.95),
        "dropout of the embedding and the positional encoding; the paper's models have none", OldFiles::may_lack_it},
       {"vocabulary", &c.vocabulary, in_range(1, 1 << 24), ""},
       {"outputs", &c.outputs, in_range(1, 1 << 24), ""},
       {"max_length", &c.max_length, in_range(1, 1 << 20), ""},
       {"row", &c.grid.row, in_range(0, 1 << 20), "", OldFiles::may_lack_it},
       {"channels", &c.grid.channels, in_range(1, 3), "", OldFiles::may_lack_it},
       {"positions", &c.positions, one_of({"sinusoidal", "learned", "none"}), "", OldFiles::may_lack_it},
       {"tied", &c.tied, {}, "", OldFiles::may_lack_it}});
}

}  // namespace runnel
