#include "models/checkpoint.h"

#include <algorithm>

#include "engine/check.h"

namespace runnel {
namespace {

using nlohmann::json;

json metadata(const SafeTensors& content, const std::filesystem::path& path, const std::string& key) {
  const auto found = content.metadata.find(key);
  check(found != content.metadata.end(), path.string(), " is not a checkpoint of this program: it has no \"", key,
        "\"");
  json value = json::parse(found->second, nullptr, false);
  check(!value.is_discarded(), path.string(), " is damaged: its \"", key, "\" is not JSON");
  return value;
}

}  // namespace

void save_checkpoint(const Checkpoint& c) {
  SafeTensors content{c.content.tensors,
                      {{"app", json(c.task).dump()},
                       {"model", c.model.dump()},
                       {"config", c.config.dump()},
                       {"data", c.data.dump()},
                       {"standing", c.state.dump()}}};
  save_safetensors(c.path, content);
}

Checkpoint read_checkpoint(const std::filesystem::path& given, const std::string& task) {
  std::filesystem::path path = given;
  std::error_code error;
  if (std::filesystem::is_directory(given, error))
    path /= std::filesystem::exists(given / "best.safetensors", error) ? "best.safetensors" : "last.safetensors";
  Checkpoint c{path, load_safetensors(path), "", {}, {}, {}, {}};
  const json app = metadata(c.content, path, "app");
  check(task.empty() || app == task, path.string(), " is a checkpoint of the app ", app.dump(), ", not of \"", task,
        "\"");
  c.task = app.is_string() ? app.get<std::string>() : "";
  c.model = metadata(c.content, path, "model");
  c.config = metadata(c.content, path, "config");
  c.data = metadata(c.content, path, "data");
  c.state = metadata(c.content, path, "standing");
  check(c.state.is_object() && c.state.contains("step") && c.state["step"].is_number_integer(), path.string(),
        " is damaged: it does not say where the run stands");
  return c;
}

json model_json(AutoregressiveConfig config) {
  json model = to_json(list(config));
  model.update(to_json(attention_settings(config.encoder.attention)));
  return model;
}

AutoregressiveTransformer load_autoregressive(const Checkpoint& checkpoint, Device device) {
  const std::string file = checkpoint.path.string();
  AutoregressiveConfig c;
  std::string problem = checkpoint.model.is_object() ? read_json(list(c), checkpoint.model) : "not a JSON object";
  if (problem.empty()) problem = read_json(attention_settings(c.encoder.attention), checkpoint.model);
  check(problem.empty(), file, " is damaged: it does not describe its model: ", problem);
  // Before a damaged number makes a model of terabytes: each is an axis of some tensor in the file.
  int64_t most = 0;
  for (const NamedTensor& parameter : checkpoint.content.tensors) most = std::max(most, parameter.tensor.size());
  for (const int64_t size :
       {c.encoder.layers, c.encoder.heads, c.encoder.head_dim, c.encoder.feed_forward, c.vocabulary, c.outputs})
    check(size > 0 && size <= most, file, " is damaged: it describes an impossible model");
  AutoregressiveTransformer model(c, Key{}, device);
  restore(checkpoint.content, checkpoint.path, model.parameters());
  return model;
}

}  // namespace runnel
