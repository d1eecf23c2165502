// predict: the classes of a user's own inputs with their probabilities.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "apps/cli/terminal.h"
#include "apps/lra/classification.h"
#include "datasets/files.h"
#include "datasets/image_file.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/text.h"

namespace runnel {
namespace {

struct PredictOptions : ModelOptions {
  const ClassificationDataset* dataset = nullptr;
  std::vector<std::string> files;
  int64_t batch = 32;

  Settings list() override {
    return extended(
        ModelOptions::list(),
        {{"input",
          &files,
          {},
          "file to classify: a picture, a text, or an expression or a pair of texts in each line; may be given "
          "several times; default: standard input, one in each line"},
         {"batch", &batch, in_range(1, 1 << 20), "samples at a time"},
         json_flag()});
  }
};

constexpr uint64_t max_file_bytes = uint64_t{1} << 30;

// InputSamples with the names that results are printed under.
class InputSamples {
 public:
  explicit InputSamples(const ClassificationDataset& dataset) : dataset_(dataset) {
    set.per_sample = dataset.pairs ? 2 : 1;
  }

  void add_file(const std::string& path) {
    if (dataset_.side) {
      const ImageSet image = load_image_file(path, dataset_.side, 1);
      add(path, {image.pixels});
    } else if (dataset_.whole_files) {
      add_text(path, read_file(path, max_file_bytes));
    } else {
      add_lines(LineFile(path));
    }
  }
  void add_lines(LineFile lines) {
    check<UsageError>(!dataset_.side, "--input is needed: a picture file, PNG or JPEG");
    for (std::string line; lines.next(line);)
      if (line.find_first_not_of(" \t") != std::string::npos) add_text(lines.at(), line);
  }

  LabelledSequences set;
  std::vector<std::string> names;

 private:
  void add_text(const std::string& name, const std::string& text) {
    try {
      add(name, dataset_.parse(text));
    } catch (const Error& error) {
      fail(name, ": ", error.what());
    }
  }
  void add(const std::string& name, const std::vector<std::vector<uint8_t>>& sequences) {
    for (const std::vector<uint8_t>& sequence : sequences) set.append(sequence);
    set.labels.push_back(0);  // nobody knows it
    names.push_back(name);
  }

  const ClassificationDataset& dataset_;
};

int predict_classes(PredictOptions& o) {
  const LoadedClassifier loaded(o.model, *o.dataset, o);
  InputSamples inputs(*o.dataset);
  for (const std::string& file : o.files) inputs.add_file(file);
  if (o.files.empty()) inputs.add_lines({"standard input", STDIN_FILENO});
  check(!inputs.names.empty(), o.files.empty() ? "standard input" : "--input", ": there is nothing to classify");

  for (int64_t i = 0; i < std::ssize(inputs.names) * inputs.set.per_sample; ++i)
    if (inputs.set.length(i) > loaded.settings.length)
      warn(fmt::format("runnel: {}: only the first {} of {} are read, which is the model's --length\n",
                       inputs.names[static_cast<size_t>(i / inputs.set.per_sample)], loaded.settings.length,
                       inputs.set.length(i)));
  std::vector<int64_t> samples(inputs.names.size());
  std::iota(samples.begin(), samples.end(), 0);
  const Predictions found =
      predict(loaded.model, inputs.set, samples, loaded.settings.view(), o.batch, Progress("classified"));
  nlohmann::json all = nlohmann::json::array();
  for (const int64_t i : samples) {
    std::vector<int64_t> order(static_cast<size_t>(found.classes));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return found.of(i, a) > found.of(i, b); });
    std::string line = shown(inputs.names[static_cast<size_t>(i)]) + ":";
    nlohmann::json probabilities = nlohmann::json::object();
    for (const int64_t c : order) {
      const std::string& name = loaded.class_names[static_cast<size_t>(c)];
      line += fmt::format("  {} {:.3f}", shown(name), found.of(i, c));
      probabilities[name] = found.of(i, c);
    }
    if (!o.json) fmt::print("{}\n", line);
    all.push_back({{"input", inputs.names[static_cast<size_t>(i)]},
                   {"class", loaded.class_names[static_cast<size_t>(order[0])]},
                   {"probabilities", probabilities}});
  }
  if (o.json) print_json({{"model", loaded.checkpoint.path.string()}, {"predictions", all}});
  return 0;
}

}  // namespace

void add_classification_predict(Subcommand task, const ClassificationDataset& dataset) {
  add_command<PredictOptions>(task, dataset, "predict", "classes of files or of standard input, with probabilities",
                              predict_classes);
}

}  // namespace runnel
