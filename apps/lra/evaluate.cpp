// evaluate: accuracy and loss on the test set, and the confusion matrix.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "apps/cli/terminal.h"
#include "apps/lra/classification.h"
#include "apps/training/communicator.h"
#include "datasets/batch.h"
#include "engine/check.h"
#include "engine/finite_guard.h"
#include "engine/text.h"
#include "models/settings_text.h"
#include "ops/reductions.h"

namespace runnel {

TokenBatch batch_for(const SequenceClassifier& model, const LabelledSequences& set, std::span<const int64_t> samples,
                     SequenceView view) {
  const TokenBatch batch = token_batch(set, samples, view);
  if (model.config.pool != "cls") return batch;
  const int64_t rows = batch.tokens.shape()[0], length = batch.tokens.shape()[1];
  const std::vector<int32_t> tokens = batch.tokens.to_vector(), places = batch.positions.to_vector();
  std::vector<int32_t> with_token, with_place, lengths = batch.lengths.to_vector();
  for (int64_t b = 0; b < rows; ++b) {
    with_token.push_back(static_cast<int32_t>(model.config.vocabulary));
    with_place.push_back(0);
    for (int64_t l = b * length; l < (b + 1) * length; ++l) {
      with_token.push_back(tokens[static_cast<size_t>(l)]);
      with_place.push_back(places[static_cast<size_t>(l)] + 1);
    }
    ++lengths[static_cast<size_t>(b)];
  }
  const Shape shape{rows, length + 1};
  return {Indices(shape, with_token), Indices(shape, with_place), Indices(Shape{rows}, lengths), batch.labels};
}

std::vector<int64_t> some_samples(const LabelledSequences& set, int64_t most) {
  std::vector<int64_t> samples = shuffled(set.count(), Key{});
  if (most && most < set.count()) samples.resize(static_cast<size_t>(most));
  return samples;
}

int64_t Predictions::chosen(int64_t sample) const {
  const auto row = log_probabilities.begin() + sample * classes;
  return std::max_element(row, row + classes) - row;
}

Predictions predict(const SequenceClassifier& model, const LabelledSequences& set, const std::vector<int64_t>& samples,
                    SequenceView view, int64_t batch, const WorkDone& report) {
  const int64_t count = std::ssize(samples), classes = model.config.classes;
  Predictions all{std::vector<float>(static_cast<size_t>(count * classes)), classes};
  const std::vector<int64_t> lengths = sample_lengths(set, view);
  std::vector<int64_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](int64_t i) { return lengths[static_cast<size_t>(samples[static_cast<size_t>(i)])]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) < length(b); });
  const auto parts = map_over_ranks((count + batch - 1) / batch, [&](int64_t part) {
    const int64_t first = part * batch;
    report(first, count);
    std::vector<int64_t> together;
    for (int64_t i = first; i < std::min(first + batch, count); ++i)
      together.push_back(samples[static_cast<size_t>(order[static_cast<size_t>(i)])]);
    const TokenBatch in = batch_for(model, set, together, view);
    const Device device = model.device();
    return finite_output(log_softmax(model({in.tokens.to(device), in.positions.to(device), in.lengths.to(device)})));
  });
  for (int64_t i = 0; i < count; ++i)
    std::copy_n(parts[static_cast<size_t>(i / batch)].begin() + i % batch * classes, classes,
                all.log_probabilities.begin() + order[static_cast<size_t>(i)] * classes);
  return all;
}

Score score(const Predictions& p, const LabelledSequences& set, const std::vector<int64_t>& samples) {
  Score result{0, 0, std::vector<int64_t>(static_cast<size_t>(p.classes * p.classes))};
  int64_t right = 0;
  for (int64_t i = 0; i < std::ssize(samples); ++i) {
    const int64_t truth = set.labels[static_cast<size_t>(samples[static_cast<size_t>(i)])], chosen = p.chosen(i);
    right += chosen == truth;
    result.loss -= p.log_of(i, truth) / static_cast<double>(samples.size());
    ++result.confusion[static_cast<size_t>(truth * p.classes + chosen)];
  }
  result.accuracy = 100 * static_cast<double>(right) / static_cast<double>(samples.size());
  return result;
}

LoadedClassifier::LoadedClassifier(const std::string& path, const ClassificationDataset& dataset,
                                   const RuntimeOptions& options)
    : checkpoint(trained_model(path, dataset.name)),
      model(load_model<SequenceClassifier>(checkpoint, options.chosen_device())) {
  settings.dataset = &dataset;
  const std::string file = checkpoint.path.string();
  const std::string problem =
      checkpoint.config.is_object() ? read_json(settings.data_settings(), checkpoint.config) : "none";
  check(problem.empty(), file, " is damaged: it does not say what it was trained with: ", problem);
  try {
    checkpoint.data.at("class_names").get_to(class_names);
  } catch (const nlohmann::json::exception&) {
    fail(file, " is damaged: it does not name its classes");
  }
  check(std::ssize(class_names) == model.config.classes && model.config.max_length == settings.length &&
            model.config.vocabulary == dataset.vocabulary && model.config.pairs == dataset.pairs,
        file, " is damaged: its model is not one of this task");
  static_cast<RuntimeOptions&>(settings) = options;
}

namespace {

struct ClassificationEvaluateOptions : EvaluateOptions {
  const ClassificationDataset* dataset = nullptr;
  std::string out;

  Settings list() override {
    return extended(EvaluateOptions::list(),
                    {{"out", &out, {}, "PNG file of the confusion matrix; default: beside the checkpoint"}});
  }
};

// Each number is a square; all together are about 320 pixels wide, or more.
void write_confusion(const std::filesystem::path& png, const std::vector<double>& shares, int64_t classes) {
  constexpr int64_t zoom = 16;
  const int64_t square = std::max<int64_t>(1, 20 / classes), side = square * classes;
  std::vector<double> values;
  for (int64_t y = 0; y < side; ++y)
    for (int64_t x = 0; x < side; ++x) values.push_back(shares[static_cast<size_t>(y / square * classes + x / square)]);
  write_png(png, heat_map(values, side, side, 1, zoom));
}

int evaluate(ClassificationEvaluateOptions& o) {
  LoadedClassifier loaded(o.model, *o.dataset, o);
  const std::filesystem::path png =
      o.out.empty() ? loaded.checkpoint.path.parent_path() / "confusion.png" : std::filesystem::path(o.out);
  check_png_replaceable(png);
  if (!o.data.empty()) loaded.settings.data = o.data;
  const ClassificationData data = load_data(loaded.settings);
  check_classes(loaded.checkpoint.path, loaded.class_names, data.test.name, data.test.class_names);
  const std::vector<int64_t> samples = some_samples(data.test, o.limit);
  const Score result =
      score(predict(loaded.model, data.test, samples, loaded.settings.view(), o.batch, Progress("evaluated")),
            data.test, samples);

  const auto classes = std::ssize(loaded.class_names);
  std::vector<double> shares(result.confusion.size());  // of the samples of a class
  nlohmann::json per_class = nlohmann::json::array();
  std::string lines;
  for (int64_t truth = 0; truth < classes; ++truth) {
    const auto row = result.confusion.begin() + truth * classes;
    const auto count = static_cast<double>(std::accumulate(row, row + classes, int64_t{0}));
    int64_t chosen = 0;
    for (int64_t c = 0; c < classes; ++c) {
      shares[static_cast<size_t>(truth * classes + c)] = count > 0 ? static_cast<double>(row[c]) / count : 0;
      chosen += result.confusion[static_cast<size_t>(c * classes + truth)];
    }
    const double recall = 100 * shares[static_cast<size_t>(truth * classes + truth)];
    const double precision = chosen ? 100 * static_cast<double>(row[truth]) / static_cast<double>(chosen) : 0;
    const std::string& name = loaded.class_names[static_cast<size_t>(truth)];
    lines += fmt::format("{:>14}  {:>6} samples  recall {:5.1f}%  precision {:5.1f}%\n", shown(name), count, recall,
                         precision);
    per_class.push_back({{"class", name},
                         {"samples", static_cast<int64_t>(count)},
                         {"recall_percent", recall},
                         {"precision_percent", precision},
                         {"chosen", std::vector<int64_t>(row, row + classes)}});
  }
  write_confusion(png, shares, classes);
  if (o.json)
    print_json({{"model", loaded.checkpoint.path.string()},
                {"step", loaded.checkpoint.step()},
                {"data", data.test.name},
                {"samples", samples.size()},
                {"accuracy_percent", result.accuracy},
                {"loss_nats", result.loss},
                {"classes", per_class},
                {"out", png.string()}});
  else
    fmt::print(
        "accuracy {:.2f}%, loss {:.4f} nats on {} samples, {}\n{}{}: share of each class (row) put into each class "
        "(column), from 0 (black) to 1 (pale yellow)\n",
        result.accuracy, result.loss, samples.size(), data.test.name, lines, png.string());
  return 0;
}

}  // namespace

void add_classification_evaluate(Subcommand task, const ClassificationDataset& dataset) {
  add_command<ClassificationEvaluateOptions>(task, dataset, "evaluate", "accuracy and confusion matrix on the test set",
                                             evaluate);
}

}  // namespace runnel
