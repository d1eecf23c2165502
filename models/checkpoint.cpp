#include "models/checkpoint.h"

#include <algorithm>
#include <cmath>

#include "engine/check.h"
#include "engine/host.h"
#include "models/config_settings.h"
#include "models/json.h"
#include "models/settings_text.h"

namespace runnel {
namespace {

using nlohmann::json;

json metadata(const SafeTensors& content, const std::filesystem::path& path, const std::string& key) {
  const auto found = content.metadata.find(key);
  check(found != content.metadata.end(), path.string(), " is not a checkpoint of this program: it has no \"", key,
        "\"");
  json value = parse_json(found->second);
  check(!value.is_discarded(), path.string(), " is damaged: its \"", key, "\" is not JSON of a checkpoint");
  return value;
}

auto metadata_of(const Checkpoint& c) {
  decltype(SafeTensors::metadata) all;
  for (const auto& [key, value] : {std::pair{"app", json(c.task)},
                                   {"model", c.model},
                                   {"config", c.config},
                                   {"data", c.data},
                                   {"standing", c.state}})
    try {
      all[key] = value.dump();
    } catch (const json::exception&) {
      fail("no checkpoint can be saved: a text of its \"", key, "\" is not UTF-8");
    }
  return all;
}

// Before a damaged number makes a model of terabytes: the matrices that every kind of attention has must fit into what
// the file holds, and the positional encoding, which it does not hold, into the memory.
template <class Config>
void check_size(const Config& c, const Checkpoint& checkpoint) {
  const std::string file = checkpoint.path.string();
  check(parameter_lower_bound(c) <= static_cast<double>(element_count(checkpoint.content.tensors)) &&
            c.encoder.layers <= std::ssize(checkpoint.content.tensors),
        file, " is damaged: it describes a model that is larger than the file");
  const double positions = buffer_size(c) * sizeof(float);
  const auto left = static_cast<double>(available_memory());
  check(positions <= left, file, ": sequences of ", c.max_length, " positions need ", positions / 1e9, " GB, and ",
        left / 1e9, " GB are left");
}

template <class Config>
json json_of(Config config) {
  json model = to_json(list(config));
  model.update(to_json(attention_settings(config.encoder.attention)));
  return model;
}

template <class Model>
Model load(const Checkpoint& checkpoint, Device device) {
  const std::string file = checkpoint.path.string();
  typename Model::Config c;
  std::string problem = checkpoint.model.is_object() ? read_json(list(c), checkpoint.model) : "not a JSON object";
  if (problem.empty()) problem = read_json(attention_settings(c.encoder.attention), checkpoint.model);
  check(problem.empty(), file, " is damaged: it does not describe its model: ", problem);
  check_size(c, checkpoint);
  Model model(c, Key{}, device);
  restore(checkpoint.content, checkpoint.path, model.parameters());
  return model;
}

}  // namespace

void save_checkpoint(const Checkpoint& c) { save_safetensors(c.path, {c.content.tensors, metadata_of(c)}); }
void check_saveable(const Checkpoint& c) { metadata_of(c); }

Checkpoint read_checkpoint(const std::filesystem::path& given, const std::string& task) {
  std::filesystem::path path = given;
  std::error_code error;
  if (std::filesystem::is_directory(given, error))
    path /= std::filesystem::exists(given / "best.safetensors", error) ? "best.safetensors" : "last.safetensors";
  Checkpoint c{path, load_safetensors(path), "", {}, {}, {}, {}};
  const json app = metadata(c.content, path, "app");
  check(task.empty() || app == task, path.string(), " is a checkpoint of the app ", short_text(app), ", not of \"",
        task, "\"");
  c.task = app.is_string() ? app.get<std::string>() : "";
  c.model = metadata(c.content, path, "model");
  c.config = metadata(c.content, path, "config");
  c.data = metadata(c.content, path, "data");
  c.state = metadata(c.content, path, "standing");
  check(c.state.is_object() && c.state.contains("step") && c.state["step"].is_number_unsigned() &&
            c.state["step"] <= INT64_MAX,
        path.string(), " is damaged: it does not say where the run stands");
  return c;
}

void check_classes(const std::filesystem::path& checkpoint, const std::vector<std::string>& learned,
                   const std::string& data, const std::vector<std::string>& classes) {
  check(!classes.empty(), data, ": there are no classes, and ", checkpoint.string(), " learned ", learned.size());
  for (size_t i = 0; i < classes.size(); ++i) {
    check(i < learned.size(), data, ": there is a class \"", classes[i], "\" more than the ", learned.size(), " that ",
          checkpoint.string(), " learned");
    check(classes[i] == learned[i], data, ": class ", i, " is \"", classes[i], "\", and ", checkpoint.string(),
          " learned it as \"", learned[i], "\"; the data must have the same classes");
  }
}

json model_json(AutoregressiveConfig config) { return json_of(std::move(config)); }
json model_json(ClassifierConfig config) { return json_of(std::move(config)); }
json model_json(TranscriberConfig config) { return json_of(std::move(config)); }

AutoregressiveTransformer load_autoregressive(const Checkpoint& checkpoint, Device device) {
  return load<AutoregressiveTransformer>(checkpoint, device);
}
SequenceClassifier load_classifier(const Checkpoint& checkpoint, Device device) {
  return load<SequenceClassifier>(checkpoint, device);
}
Transcriber load_transcriber(const Checkpoint& checkpoint, Device device) {
  return load<Transcriber>(checkpoint, device);
}

}  // namespace runnel
