#include "apps/training/model_settings.h"

namespace runnel {

void TransformerSettings::adapt_to(const nlohmann::json& config) {
  ModelSettings::adapt_to(config);
  if (!config.contains("embedding-dropout")) model.embedding_dropout = model.encoder.dropout;
}

AutoregressiveConfig TransformerSettings::model_for(int64_t vocabulary, int64_t outputs, int64_t max_length) const {
  const int64_t heads = model.encoder.heads;
  check<UsageError>(width % heads == 0, "--heads ", heads, " does not divide --width ", width);
  check<UsageError>(model.positions != "sinusoidal" || width % 2 == 0, "--width ", width,
                    " is odd; half of it is the embedding, half the positional encoding");
  AutoregressiveConfig config = model;
  config.vocabulary = vocabulary;
  config.outputs = outputs;
  config.max_length = max_length;
  return with_encoder(std::move(config), width);
}

}  // namespace runnel
