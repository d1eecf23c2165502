#include "models/checkpoint.h"

#include <algorithm>
#include <cmath>

#include "engine/check.h"
#include "engine/host.h"
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

}  // namespace

void save_checkpoint(const Checkpoint& c, MatrixStorage matrices) {
  save_safetensors(c.path, {c.content.tensors, metadata_of(c)}, matrices);
}
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

json model_json(const Settings& settings, AttentionConfig& attention) {
  json model = to_json(settings);
  model.update(to_json(attention_settings(attention)));
  return model;
}

void read_model_config(const Checkpoint& checkpoint, const Settings& settings, AttentionConfig& attention) {
  std::string problem = checkpoint.model.is_object() ? read_json(settings, checkpoint.model) : "not a JSON object";
  if (problem.empty()) problem = read_json(attention_settings(attention), checkpoint.model);
  check(problem.empty(), checkpoint.path.string(), " is damaged: it does not describe its model: ", problem);
}

void check_model_size(const Checkpoint& checkpoint, double parameters, int64_t layers, double buffer,
                      int64_t max_length) {
  const std::string file = checkpoint.path.string();
  check(parameters <= static_cast<double>(element_count(checkpoint.content.tensors)) &&
            layers <= std::ssize(checkpoint.content.tensors),
        file, " is damaged: it describes a model that is larger than the file");
  const double positions = buffer * sizeof(float);
  const auto left = static_cast<double>(available_memory());
  check(positions <= left, file, ": sequences of ", max_length, " positions need ", positions / 1e9, " GB, and ",
        left / 1e9, " GB are left");
}

}  // namespace runnel
