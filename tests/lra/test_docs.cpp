// docs/lra.md is true.
#include "models/attention_kinds.h"
#include "models/autoregressive.h"
#include "models/lra/classifier.h"
#include "tests/tensor_table.h"

using namespace runnel;
using namespace runnel::test;

TEST_CASE("docs: docs/lra.md's table names every tensor of classifiers and of all kinds of attention, and no others") {
  if (!has_sources()) return;
  std::set<std::string> expected;
  for (const AttentionKind* kind : attention_kinds()) {
    std::vector<AttentionConfig> configs{{kind->name}};
    for (const AttentionKind::Variant& variant : kind->variants) configs.push_back({kind->name, variant.values});
    for (const AttentionConfig& config : configs) {
      EncoderConfig encoder = small_encoder;
      encoder.attention = config;
      append_names(expected,
                   kind->full ? SequenceClassifier({.encoder = encoder, .max_length = 16}, Key{1}).parameters()
                              : AutoregressiveTransformer({.encoder = encoder, .max_length = 16}, Key{1}).parameters());
    }
  }
  check_names_of_package("lra.md", expected);
}
