// config.json, held to the settings of a model.
#include "models/autoregressive.h"
#include "models/json.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  const nlohmann::json json = parse_json(std::string(reinterpret_cast<const char*>(data), size));
  AutoregressiveConfig config;
  if (json.is_object() && read_json(list(config), json).empty())
    read_json(attention_settings(config.encoder.attention), json);
  short_text(json);
  return 0;
}
