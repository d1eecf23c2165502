// config.json of a run that is resumed, and a file of settings, --config.
#include "apps/training/model_settings.h"
#include "models/json.h"
#include "tests/fuzz/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace runnel;
  const nlohmann::json json = parse_json(std::string(reinterpret_cast<const char*>(data), size));
  short_text(json);
  if (!json.is_object()) return 0;
  TransformerSettings settings;
  fuzz::ends_well([&] {
    take_over(settings, json);
    check_same_run(json, settings);
    settings.model_for(11, 11, 128);
  });
  return fuzz::ends_well([&] { apply_settings_file(settings, json, "file"); });
}
