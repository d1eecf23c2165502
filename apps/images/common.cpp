#include "apps/images/images.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "apps/training/communicator.h"
#include "apps/training/task.h"
#include "engine/check.h"
#include "engine/finite_guard.h"
#include "models/generation.h"
#include "ops/losses.h"

namespace runnel {

namespace fs = std::filesystem;

namespace {

constexpr int64_t held_out = 200;

}  // namespace

TrainingImages with_held_out(const ImageSet& all) {
  check(all.count > held_out, all.name, ": ", all.count, " images; training needs more than ", held_out);
  return {slice(all, 0, all.count - held_out), slice(all, all.count - held_out, held_out), count_first_bytes(all)};
}

std::vector<int64_t> count_first_bytes(const ImageSet& images) {
  std::vector<int64_t> counts(256);
  for (int64_t i = 0; i < images.count; ++i) ++counts[images.image(i)[0]];
  return counts;
}

void add_image_task(Subcommand program, const ImageDataset& dataset, Presets (*presets)()) {
  program.add(dataset.name, dataset.help, [presets, &dataset](Subcommand task) {
    add_training_command(task, dataset, presets());
    add_evaluate(task, dataset);
    add_sample(task, dataset);
    add_complete(task, dataset);
    add_state(task, dataset);
  });
}

Settings PictureOptions::list() {
  return extended(ModelOptions::list(), {{"out", &out, {}, "PNG file to write; default: beside the checkpoint"}});
}

namespace {

std::vector<std::string> class_numbers(int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

}  // namespace

LoadedImageModel::LoadedImageModel(const PictureOptions& o, const char* picture_name, bool is_folder)
    : dataset(*o.dataset),
      checkpoint(trained_model(o.model, o.dataset->name)),
      model(load_model<AutoregressiveTransformer>(checkpoint, o.chosen_device())) {
  const AutoregressiveConfig& c = model.config;
  try {
    checkpoint.config.at("side").get_to(side);
    checkpoint.config.at("classes").get_to(class_conditional);
    checkpoint.config.at("data").get_to(data);
    checkpoint.data.at("first_bytes").get_to(first_bytes);
    channels = checkpoint.data.value("channels", dataset.channels);
    class_names = checkpoint.data.value("class_names", std::vector<std::string>());
  } catch (const nlohmann::json::exception&) {
    fail(checkpoint.path.string(), " is damaged: it does not say what images it was trained on");
  }
  if (class_names.empty()) class_names = class_numbers(c.vocabulary - 256);  // an older checkpoint
  check(side > 0 && side <= 4096 && image_size() == c.max_length + (class_conditional ? 0 : 1) &&
            c.vocabulary == 256 + (class_conditional ? std::ssize(class_names) : 0) &&
            (c.outputs == 256 || c.outputs % 3 == 0) && first_bytes.size() == 256,
        checkpoint.path.string(), ": not a model of images of ", side, " x ", side);
  out = o.out.empty() ? checkpoint.path.parent_path() / picture_name : fs::path(o.out);
  if (!is_folder) check_png_replaceable(out);
}

void LoadedImageModel::make_folder() const {
  std::error_code ignored;
  fs::create_directories(out, ignored);
  check(fs::is_directory(out) && access(out.c_str(), W_OK) == 0, "--out ", out.string(), ": cannot be written");
}

ImageSet LoadedImageModel::test_images(const std::string& given) const {
  ImageSet images = dataset.load_test(given.empty() ? data : given, side, channels);
  if (!class_conditional) return images;
  const bool is_older = !checkpoint.data.contains("class_names");
  check_classes(checkpoint.path, class_names, images.name,
                is_older ? class_numbers(std::ssize(images.class_names)) : images.class_names);
  return images;
}

int64_t LoadedImageModel::class_number(const std::string& text) const {
  if (text == "-1") return -1;
  check<UsageError>(class_conditional, "--class ", text, ": ", checkpoint.path.string(),
                    " was not trained with --classes");
  for (size_t i = 0; i < class_names.size(); ++i)
    if (class_names[i] == text) return static_cast<int64_t>(i);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string names;
  for (const std::string& name : class_names) names += (names.empty() ? "" : ", ") + name;
  check<UsageError>(
      error == std::errc() && end == text.data() + text.size() && number >= 0 && number < std::ssize(class_names),
      "--class ", text, " is none of the model's ", class_names.size(), " classes: ", names);
  return number;
}

std::vector<double> nll_by_position(const AutoregressiveTransformer& model, const ImageSet& images,
                                    bool class_conditional, const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t at_once = std::max<int64_t>(1, 6272 / images.size());  // keeps activations near the caches
  const int64_t each = 16 * at_once, parts = (images.count + each - 1) / each;
  const size_t length = static_cast<size_t>(model.config.max_length);
  std::vector<double> total(length);
  const auto sums = map_over_ranks(parts, [&](int64_t part) {
    std::vector<double> sum(length);
    const int64_t end = std::min((part + 1) * each, images.count);
    for (int64_t first = part * each; first < end; first += at_once) {
      const ByteBatch batch =
          byte_batch(images, first, std::min(at_once, end - first), model.device(), class_conditional);
      const std::vector<float> nll = finite_output(byte_nll(model(batch.tokens), batch.targets));
      for (size_t i = 0; i < nll.size(); ++i) sum[i % length] += nll[i];
      if (progress) progress(std::min(first + at_once, end), images.count);
    }
    return sum;
  });
  if (progress) progress(images.count, images.count);
  for (const std::vector<double>& sum : sums) std::ranges::transform(total, sum, total.begin(), std::plus<>());
  return total;
}

namespace {

// generate(), by this process alone.
std::vector<uint8_t> draw(const Decoder& start, Key seed, int64_t first, int64_t count,
                          const std::vector<int64_t>& first_bytes, int64_t wanted, double temperature,
                          const std::function<void(int64_t, int64_t)>& progress) {
  const AutoregressiveConfig& config = start.model().config;
  const int64_t class_count = config.vocabulary - 256;
  const bool class_conditional = class_count > 0;
  const int64_t n = config.max_length + (class_conditional ? 0 : 1);
  const double all = static_cast<double>(std::accumulate(first_bytes.begin(), first_bytes.end(), int64_t{0}));
  std::vector<Key> keys;
  std::vector<uint8_t> images(static_cast<size_t>(count * n));
  std::vector<int32_t> classes;
  for (int64_t i = 0; i < count; ++i) {
    keys.push_back(seed.fold(static_cast<uint64_t>(first + i)));
    double left = keys.back().uniform(0) * all;
    uint8_t byte = 0;
    while (byte < 255 && (left -= static_cast<double>(first_bytes[byte])) >= 0) ++byte;
    if (class_conditional)
      classes.push_back(static_cast<int32_t>(wanted < 0 ? (first + i) % class_count : wanted));
    else
      images[static_cast<size_t>(i * n)] = byte;
  }
  sample_bytes(images, class_conditional ? 0 : 1, start, std::vector<int64_t>(keys.size()), keys,
               static_cast<float>(temperature), progress, classes);
  return images;
}

}  // namespace

std::vector<uint8_t> generate(const Decoder& start, Key seed, int64_t first, int64_t count,
                              const std::vector<int64_t>& first_bytes, int64_t wanted, double temperature,
                              const std::function<void(int64_t, int64_t)>& progress) {
  return divided_images(count, [&](int64_t begin, int64_t end) {
    return draw(start, seed, first + begin, end - begin, first_bytes, wanted, temperature, progress);
  });
}

std::vector<uint8_t> divided_images(int64_t count,
                                    const std::function<std::vector<uint8_t>(int64_t begin, int64_t end)>& draw_some) {
  const int64_t shares = processes().size();
  const auto drawn = map_over_ranks(shares, [&](int64_t share) {
    const int64_t begin = share * count / shares, end = (share + 1) * count / shares;
    return begin == end ? std::vector<uint8_t>() : draw_some(begin, end);
  });
  std::vector<uint8_t> all;
  for (const std::vector<uint8_t>& images : drawn) all.insert(all.end(), images.begin(), images.end());
  return all;
}

Settings DrawOptions::list() {
  return extended(PictureOptions::list(),
                  {{"temperature", &temperature, in_range(0.01, 10), "below 1: sharper than the learned distribution"},
                   {"stateful",
                    &cached,
                    {},
                    "decode softmax attention with a KV cache instead of recomputing the prefix for each byte"},
                   {"state-precision", &state_precision, one_of({"f32", "bf16"}),
                    "of the state S of linear and performer attention; bf16 takes half the memory"}});
}

std::unique_ptr<Decoder> decoder_for(const LoadedImageModel& loaded, const DrawOptions& o, int64_t batch) {
  const std::string& kind = loaded.model.config.encoder.attention.kind;
  const bool possible = has_incremental_form(loaded.model), recurrent = has_recurrent_state(loaded.model);
  const bool rounded = o.state_precision == "bf16";
  check<UsageError>(!o.cached || possible, "--stateful: ", kind, " attention has no incremental form");
  check<UsageError>(recurrent || !rounded, "--state-precision bf16: ", kind,
                    " attention keeps no state of constant size; leave it out");
  // The paper's softmax recomputes the prefix unless it is asked not to; kinds with a state of constant size use it.
  if (recurrent || (possible && o.cached))
    return incremental_decoder(loaded.model, batch, rounded ? Precision::bf16 : Precision::f32);
  check<UsageError>(o.precision != "int8", "--precision int8: ", kind,
                    " attention recomputes the prefix, in f32 or bf16; give one of these",
                    possible ? " or --stateful" : "");
  return uncached_decoder(loaded.model, batch);
}

Indices tokens_at(const ImageSet& images, bool class_conditional, const std::vector<int64_t>& numbers, int64_t t,
                  Device device) {
  std::vector<int32_t> tokens;
  for (const int64_t i : numbers) {
    const int64_t byte = t - (class_conditional ? 1 : 0);
    tokens.push_back(byte < 0 ? 256 + images.labels[static_cast<size_t>(i)]
                              : images.image(i)[static_cast<size_t>(byte)]);
  }
  return Indices(Shape{std::ssize(tokens)}, tokens, device);
}

}  // namespace runnel
