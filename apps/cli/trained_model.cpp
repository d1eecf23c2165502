#include "apps/cli/trained_model.h"

#include "engine/check.h"
#include "engine/text.h"

namespace runnel {

Checkpoint trained_model(const std::string& model, const std::string& task) {
  check<UsageError>(!model.empty(), "--model is needed: a run folder or a .safetensors file");
  const std::filesystem::path path(model);
  std::error_code error;
  check<UsageError>(
      !path.has_extension() || path.extension() == ".safetensors" || !std::filesystem::is_regular_file(path, error),
      "--model ", excerpt(model), " is not a checkpoint; give a run folder or a .safetensors file");
  return read_checkpoint(model, task);
}

}  // namespace runnel
