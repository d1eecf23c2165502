// runnel bench generation: tables 1, 2, 4 and 5 of the paper, images/s and the time that one image takes, for each kind
// of attention. The work does not depend on the image, so the models are not trained.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/bench/bench.h"
#include "models/generation.h"

namespace runnel {

AutoregressiveConfig paper_image_model(const std::string& images) {
  const bool mnist = images == "mnist";
  return {.encoder = {.layers = mnist ? 8 : 16}, .vocabulary = 256, .outputs = 30, .max_length = mnist ? 783 : 3071};
}

namespace {

Choices method_names();

struct GenerationOptions : BenchOptions {
  std::string images = "mnist";
  std::string method;
  int64_t positions = 8;
  double limit = 60;

  bool decodes() const override { return true; }
  Settings list() override {
    return extended(
        BenchOptions::list(),
        {{"images", &images, one_of({"mnist", "cifar10"}), "the paper's model of these images"},
         {"method",
          &method,
          {},
          "methods separated by commas, of " + one_of(method_names()).description() + "; default: all"},
         {"positions", &positions, in_range(1, 783), "timed positions of methods that recompute the prefix at each"},
         {"limit", &limit, in_range(1, 1e6), "seconds: a batch that would take longer is not tried"}});
  }
};

// A method's values in the paper's tables 1, 2, 4 (images/s on a GPU) and table 5 (seconds for one image).
struct PaperRow {
  double images_per_second, cpu_seconds, gpu_seconds;
};

struct Row {
  std::string name;
  std::string kind;
  SettingValues values;
  bool incremental;
  PaperRow mnist, cifar10;
  Precision state = Precision::f32;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"softmax", "softmax", {}, false, {0.45, 72.6, 10.2}, {0.004, 8651.4, 300.1}},
      {"stateful-softmax", "softmax", {}, true, {7.56, 7.4, 10.4}, {0.32, 71.9, 70.4}},
      {"lsh-1", "lsh", {{"rounds", int64_t{1}}}, false, {0.68, 46.0, 19.2}, {0.015, 2318.9, 221.6}},
      {"lsh-4", "lsh", {{"rounds", int64_t{4}}}, false, {0.27, 112.0, 55.8}, {0.005, 5263.7, 683.9}},
      {"linear", "linear", {}, true, {142.8, 5.5, 7.3}, {17.85, 45.1, 61.3}},
      {"linear-bf16-state", "linear", {}, true, {142.8, 5.5, 7.3}, {17.85, 45.1, 61.3}, Precision::bf16}};
  return all;
}

// Seconds for `count` images, drawn byte after byte from a state.
double seconds_incremental(const GenerationOptions& o, const AutoregressiveTransformer& model, size_t count,
                           Precision state) {
  const size_t bytes = static_cast<size_t>(model.config.max_length) + 1;
  std::vector<uint8_t> images(count * bytes);
  std::vector<Key> keys;
  for (uint64_t i = 0; i < count; ++i) keys.push_back(Key{i});
  const std::unique_ptr<Decoder> start = incremental_decoder(model, 1, state);
  return median_seconds(o, [&] { sample_bytes(images, 1, *start, std::vector<int64_t>(count), keys, 1); });
}

// The same without a state: as many positions as are timed, each in the middle of an equal part of the image, stand for
// all. The time of a position grows with the positions read, so their mean is that of all.
double seconds_uncached(const GenerationOptions& o, const AutoregressiveTransformer& model, int64_t count) {
  const int64_t length = model.config.max_length;
  double sum = 0;
  for (int64_t i = 0; i < o.positions; ++i) {
    const std::unique_ptr<Decoder> before = uncached_decoder(model, count);
    const int64_t position = length * (2 * i + 1) / (2 * o.positions);
    for (int64_t t = 0; t < position; ++t) {
      std::vector<int32_t> bytes;
      for (int64_t b = 0; b < count; ++b)
        bytes.push_back(static_cast<int32_t>(Key{7}.below(static_cast<uint64_t>(t * count + b), 256)));
      before->read(Indices(Shape{count}, bytes, o.chosen_device()));
    }
    const Indices last(Shape{count}, std::vector<int32_t>(static_cast<size_t>(count)), o.chosen_device());
    std::vector<int64_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), 0);
    sum += median_seconds(o, [&] { before->select(rows)->step(last); });
  }
  return sum * static_cast<double>(length) / static_cast<double>(o.positions);
}

// How many images are drawn at once. A GPU needs thousands to be busy; without a state, a batch of sequences is enough.
std::vector<int64_t> counts(const GenerationOptions& o, const Row& row) {
  if (o.chosen_device() == Device::cpu || cuda_is_emulated()) return {1, 8, 64};
  return row.incremental ? std::vector<int64_t>{1, 64, 1024, 4096, 16384} : std::vector<int64_t>{1, 64};
}

Choices method_names() {
  Choices names;
  for (const Row& row : rows()) names.push_back(row.name);
  return names;
}

// Those that --method names, in the table's order.
std::vector<Row> chosen_rows(const GenerationOptions& o) {
  const std::vector<std::string> words = chosen_words("method", o.method, method_names());
  std::vector<Row> chosen = rows();
  std::erase_if(chosen, [&](const Row& row) { return std::find(words.begin(), words.end(), row.name) == words.end(); });
  return chosen;
}

int bench_generation(GenerationOptions& o) {
  const std::vector<Row> chosen = chosen_rows(o);
  const AutoregressiveConfig config = paper_image_model(o.images);
  fmt::print("images of {} bytes, {} layers; paper: images/s on its GPU, seconds for one on its CPU and GPU\n",
             config.max_length + 1, config.encoder.layers);
  Table table(o, "generation-" + o.images,
              {"method", "at once", "images/s", "x softmax", "paper", "x softmax", "one, s", "x softmax", "paper CPU",
               "x softmax", "paper GPU"},
              std::ssize(chosen));
  double rate_of_softmax = 0, one_of_softmax = 0;
  for (const Row& row : chosen) {
    AutoregressiveConfig own = config;
    own.encoder.attention = {row.kind, row.values};
    if (row.kind == "lsh") own.encoder.attention.values["chunk"] = int64_t{o.images == "mnist" ? 29 : 37};
    const AutoregressiveTransformer model(own, Key{1}, o.chosen_device());
    double one = 0, rate = 0;
    int64_t best = 0;
    const std::vector<int64_t> at_once = counts(o, row);
    for (size_t i = 0; i < at_once.size(); ++i) {
      const int64_t count = at_once[i];
      const double seconds = row.incremental ? seconds_incremental(o, model, static_cast<size_t>(count), row.state)
                                             : seconds_uncached(o, model, count);
      table.note(fmt::format("{}, {} at once: {:.3g} images/s", row.name, count, static_cast<double>(count) / seconds));
      if (count == 1) one = seconds;
      if (static_cast<double>(count) / seconds > rate) {
        rate = static_cast<double>(count) / seconds;
        best = count;
      }
      if (i + 1 == at_once.size()) break;
      // A GPU that few images leave idle takes hardly longer for more of them.
      const double growth = o.chosen_device() == Device::cpu ? static_cast<double>(at_once[i + 1] / count) : 4;
      const double next =
          growth * seconds *
          (row.incremental ? 1 : static_cast<double>(o.positions) / static_cast<double>(config.max_length));
      if (next > o.limit) break;
    }
    if (row.name == "softmax") rate_of_softmax = rate, one_of_softmax = one;
    const bool has_softmax = rate_of_softmax > 0;
    const PaperRow &paper = o.images == "mnist" ? row.mnist : row.cifar10,
                   &paper_softmax = o.images == "mnist" ? rows()[0].mnist : rows()[0].cifar10;
    table.row({row.name + (row.incremental ? "" : "*"), std::to_string(best), fmt::format("{:.3g}", rate),
               has_softmax ? fmt::format("{:.1f}", rate / rate_of_softmax) : "-",
               fmt::format("{:.3g}", paper.images_per_second),
               fmt::format("{:.1f}", paper.images_per_second / paper_softmax.images_per_second),
               fmt::format("{:.3g}", one), has_softmax ? fmt::format("{:.3f}", one / one_of_softmax) : "-",
               fmt::format("{:.1f}", paper.cpu_seconds),
               fmt::format("{:.3f}", paper.cpu_seconds / paper_softmax.cpu_seconds),
               fmt::format("{:.1f}", paper.gpu_seconds)});
  }
  if (std::any_of(chosen.begin(), chosen.end(), [](const Row& row) { return !row.incremental; }))
    fmt::print(
        "* recomputes the prefix at each byte; extrapolated from {} of the {} positions, in the middle of equal "
        "parts\n",
        o.positions, config.max_length);
  plot(table.file(".png"), "set title 'generation, " + o.images +
                               "'; set style data histograms; set style fill solid 0.8; set logscale y; "
                               "set ylabel 'images/s'; set key left top; plot " +
                               table.source() + " skip 2 using 3:xtic(1) title 'here', " + table.source() +
                               " skip 2 using 5 title 'paper, GPU'");
  table.finish();
  return 0;
}

}  // namespace

void add_generation(Subcommand bench) {
  add_command<GenerationOptions>(bench, "generation", "tables 1, 2, 4, 5: images/s and seconds for one image",
                                 bench_generation);
}

}  // namespace runnel
