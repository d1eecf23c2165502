// runnel mnist and runnel cifar10: images as sequences of bytes, one after another, the paper's section 4.2. The model
// reads bytes 0 .. n-2 and says of each next byte how likely its 256 values are: as a mixture of 10 logistics, or one
// by one. There is no start token: the first byte is only an input. With --classes the image's class comes first, and
// all are predicted.
#include "apps/images.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "datasets/cifar10.h"
#include "datasets/mnist.h"
#include "datasets/synthetic_digits.h"
#include "engine/check.h"
#include "models/generation.h"
#include "ops/ops.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr int64_t mixture_outputs = 3 * 10;  // of 10 logistics
constexpr int64_t categorical_outputs = 256;
constexpr int64_t held_out = 200;  // images at the end of the training set that choose the best checkpoint instead

const ImageData mnist{.name = "mnist",
                      .side = 28,
                      .channels = 1,
                      .sides = {"28", "14", "7"},
                      .data_help = "folder with MNIST ($RUNNEL_DATA or ./data if not given), or: synthetic",
                      .keep = 300,
                      .load = [](const std::string& data, Split split) {
                        // The drawn digits are one data set, whatever --seed says.
                        return data == "synthetic" ? synthetic_digits(split == Split::train ? 60000 : 10000,
                                                                      Key{2020}.fold(split == Split::train ? 0 : 1))
                                                   : load_mnist(data_directory(data), split);
                      }};

const ImageData cifar10{
    .name = "cifar10",
    .side = 32,
    .channels = 3,
    .sides = {"32", "16", "8"},
    .data_help = "folder with CIFAR-10's binary batches ($RUNNEL_DATA or ./data if not given)",
    .keep = 1536,
    .load = [](const std::string& data, Split split) { return load_cifar10(data_directory(data), split); }};

struct ImageSettings : Settings {
  const ImageData* set = &mnist;
  int64_t side = 28;
  std::string position = "line";
  std::string distribution = "mixture";
  bool classes = false;
  std::string data;

  template <class Each>
  void each(Each&& option) {
    Settings::each(option);
    option("side", side, one_of(set->sides), "height and width of the images; smaller ones are scaled down");
    option("position", position, one_of({"line", "grid"}),
           "what is coded of a byte's place: its number, as in the paper, or its row, column and channel");
    option("distribution", distribution, one_of({"mixture", "categorical"}),
           "what is predicted of a byte: a mixture of 10 logistics, as in the paper, or how likely each value is");
    option("classes", classes, Allowed(), "tell the model the class of each image, to draw what sample --class says");
    option("data", data, Allowed(), set->data_help);
  }
};

struct EvaluateOptions : UseOptions {
  std::string data;
  int64_t limit = 0;

  template <class Each>
  void each(Each&& option) {
    UseOptions::each(option);
    option("data", data, Allowed(), "as in train; what the model was trained on if not given");
    option("limit", limit, in_range(0, 1e9), "only the first so many test images; 0: all");
  }
};

// -log P of each predicted byte in nats, summed over the images: [n-1], with classes [n].
std::vector<double> nll_by_position(const Transformer& model, const ImageSet& images, bool classes,
                                    bool show_progress) {
  const int64_t at_once = std::max<int64_t>(1, 6272 / images.size());  // keeps activations near the caches
  const size_t length = static_cast<size_t>(model.config().max_length);
  std::vector<double> total(length);
  const Progress progress("evaluated");
  for (int64_t first = 0; first < images.count; first += at_once) {
    const ByteBatch batch = byte_batch(images, first, std::min(at_once, images.count - first), model.device(), classes);
    const std::vector<float> nll = byte_nll(model(batch.tokens), batch.targets).to_vector();
    for (size_t i = 0; i < nll.size(); ++i) total[i % length] += nll[i];
    if (show_progress) progress(std::min(first + at_once, images.count), images.count);
  }
  return total;
}

// Nats per byte -> bits per byte ("bits/dim").
double mean(const std::vector<double>& total, int64_t images) {
  return std::accumulate(total.begin(), total.end(), 0.0) / static_cast<double>(images) /
         static_cast<double>(total.size());
}

int train_images(ImageSettings& s) {
  const ImageData& set = *s.set;
  const int64_t size = s.side * s.side * set.channels;
  TransformerConfig config =
      s.model(256 + (s.classes ? 10 : 0), s.distribution == "categorical" ? categorical_outputs : mixture_outputs,
              size - (s.classes ? 0 : 1));
  if (s.position == "grid") {
    config.row = s.side * set.channels;
    config.channels = set.channels;
  }
  Transformer model(config, key_for(s.seed, Purpose::initialisation), s.where());
  const ImageSet all = load(set, s.data, Split::train, s.side);
  check(all.count > held_out, all.name, ": ", all.count, " images; training needs more than ", held_out);
  const ImageSet images = slice(all, 0, all.count - held_out), kept = slice(all, all.count - held_out, held_out);
  fmt::print("data: {}, {} images of {} x {}; {} more choose the best checkpoint\n", images.name, images.count, s.side,
             s.side, held_out);
  const std::vector<int64_t> first = first_bytes(all);

  Task task{.app = set.name,
            .model = model,
            .tokens = config.max_length,
            .epoch = images.count,
            .bits = true,
            .data = {{"first_bytes", first}},
            .loss = {},
            .validate = {},
            .preview = {}};
  task.loss = [&](int64_t first_image, int64_t count, Key key) {
    const ByteBatch bytes = byte_batch(images, first_image, count, model.device(), s.classes);
    const Tensor nll = byte_nll(model(bytes.tokens, key), bytes.targets);
    return scale(sum(nll), 1 / static_cast<float>(nll.size()));
  };
  task.validate = [&] { return mean(nll_by_position(model, kept, s.classes, false), kept.count); };
  task.preview = [&] {
    const bool stateful = config.attention != Attention::lsh;
    const int64_t count = stateful ? 16 : 2;  // which then take as long as many
    const std::vector<uint8_t> drawn =
        generate(model, stateful, key_for(s.seed, Purpose::sampling), 0, count, first, -1, 1, false);
    std::vector<Picture> pictures;
    for (int64_t i = 0; i < count; ++i)
      pictures.push_back(picture({drawn.data() + i * size, static_cast<size_t>(size)}, s.side, s.side, set.channels));
    return pictures;
  };
  return train(task, s, to_json(s));
}

int evaluate(EvaluateOptions& o) {
  const Use use(o, "bits.png");
  ImageSet images = use.test_images(o.data);
  if (o.limit && o.limit < images.count) images = slice(images, 0, o.limit);

  std::vector<double> bits = nll_by_position(use.checkpoint.model, images, use.classes, true);
  for (double& b : bits) b /= std::numbers::ln2;
  fmt::print("{:.4f} bits/dim over {} bytes of each of {} images of {} x {}, {}\n", mean(bits, images.count),
             bits.size(), images.count, use.side, use.side, images.name);

  for (double& b : bits) b /= static_cast<double>(images.count);
  const double largest = *std::max_element(bits.begin(), bits.end());
  if (!use.classes) bits.insert(bits.begin(), 0);  // the first byte is not predicted
  // The channels side by side: [side,channels,side].
  const int64_t channels = use.set.channels, width = channels * use.side;
  std::vector<double> map(bits.size());
  for (int64_t i = 0; i < std::ssize(bits); ++i)
    map[static_cast<size_t>(i / width * width + i % channels * use.side + i % width / channels)] =
        bits[static_cast<size_t>(i)];
  write_png(use.out, heat_map(map, use.side, width, largest, 336 / use.side));
  fmt::print("{}: mean bits of each byte{}, from 0 (black) to {:.2f} (pale yellow)\n", use.out.string(),
             channels == 3 ? ", red, green, blue" : "", largest);
  return 0;
}

std::vector<ImageSettings> mnist_presets() {
  ImageSettings paper;
  paper.layers = 8;
  paper.batch = 10;
  paper.steps = 1500000;  // 250 epochs
  paper.lr = 1e-4;
  paper.schedule = "constant";
  paper.buckets = 64;
  paper.chunk = 29;
  paper.evaluate_every = paper.save_every = 1000;

  // Found by trying. In so little time narrow layers learn more, since they see more images. A learning rate that
  // begins high and is low for most of the run matters much; clipping tightly and forgetting old squares soon
  // (beta2) keep it from diverging. Most matters that it need not find out where the pixels nearby are
  // (models/initial.h): heads as wide as a row is long then tell all columns apart. And that it says of each value how
  // likely it is: the gradients of a mixture's means grow as its logistics narrow, until they drown all others.
  ImageSettings small = paper;
  small.preset = "small";
  small.precision = "auto";
  small.position = "grid";
  small.distribution = "categorical";
  small.layers = 4;
  small.width = 128;
  small.heads = 4;
  small.feed_forward = 384;
  small.dropout = 0;
  small.batch = 8;
  small.steps = 1000000;
  small.minutes = 20;
  small.optimizer = "muon";
  small.lr = 2e-3;
  small.weight_decay = 0;  // it would blunt what the heads begin with
  small.beta2 = 0.98;
  small.clip = 0.1;
  small.schedule = "quadratic";
  small.log_every = 100;
  small.evaluate_every = small.save_every = 5000;

  ImageSettings tiny = small;
  tiny.preset = "tiny";
  tiny.side = 14;
  tiny.layers = 3;
  tiny.width = 96;
  tiny.heads = 2;
  tiny.lr = 3e-3;
  tiny.evaluate_every = tiny.save_every = 2000;
  tiny.minutes = 3.5;
  return {paper, small, tiny};
}

std::vector<ImageSettings> cifar10_presets() {
  ImageSettings paper = mnist_presets()[0];
  paper.set = &cifar10;
  paper.side = 32;
  paper.layers = 16;
  paper.batch = 4;
  paper.steps = 3750000;  // 300 epochs: how far the authors came in their week is not known
  paper.chunk = 37;

  ImageSettings small = mnist_presets()[1];
  small.set = &cifar10;
  small.side = 32;
  small.chunk = 37;
  small.distribution = paper.distribution;  // here no level is so frequent, and a mixture knows that they are ordered
  small.width = 96;
  small.heads = 3;
  small.feed_forward = 256;
  small.batch = 4;
  small.lr = 1.5e-3;
  small.minutes = 60;
  small.evaluate_every = small.save_every = 2000;

  ImageSettings tiny = small;
  tiny.preset = "tiny";
  tiny.side = 16;
  tiny.minutes = 5;
  return {paper, small, tiny};
}

}  // namespace

void Progress::operator()(int64_t done, int64_t of) const {
  if (!isatty(STDERR_FILENO)) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  const double left = seconds * static_cast<double>(of - done) / static_cast<double>(done);
  fmt::print(stderr, "\r\x1b[K{} {} of {}, {} left{}", what_, done, of, duration_text(left), done == of ? "\n" : "");
}

std::vector<int64_t> first_bytes(const ImageSet& images) {
  std::vector<int64_t> counts(256);
  for (int64_t i = 0; i < images.count; ++i) ++counts[images.image(i)[0]];
  return counts;
}

ImageSet load(const ImageData& set, const std::string& data, Split split, int64_t side) {
  ImageSet images = set.load(data, split);
  while (images.height > side) images = halved(images);
  return images;
}

Use::Use(const UseOptions& o, const char* picture_name, bool folder)
    : set(*o.set), checkpoint(load_checkpoint(o.model, o.set->name, o.where())) {
  try {
    checkpoint.config.at("side").get_to(side);
    checkpoint.config.at("classes").get_to(classes);
    checkpoint.config.at("data").get_to(data);
    checkpoint.data.at("first_bytes").get_to(first_bytes);
  } catch (const nlohmann::json::exception&) {
    fail(checkpoint.path.string(), " is damaged: it does not say what images it was trained on");
  }
  const TransformerConfig& c = checkpoint.model.config();
  check(image_size() == c.max_length + (classes ? 0 : 1) && c.vocabulary == 256 + (classes ? 10 : 0) &&
            (c.outputs == mixture_outputs || c.outputs == categorical_outputs) && first_bytes.size() == 256,
        checkpoint.path.string(), ": not a model of images of ", side, " x ", side);
  out = o.out.empty() ? checkpoint.path.parent_path() / picture_name : fs::path(o.out);
  const fs::path into = out.has_parent_path() ? out.parent_path() : fs::path(".");
  check(folder || (access(into.c_str(), W_OK) == 0 && !fs::is_directory(out)), "--out ", out.string(),
        ": cannot be written");
}

void Use::make_folder() const {
  std::error_code ignored;
  fs::create_directories(out, ignored);
  check(fs::is_directory(out) && access(out.c_str(), W_OK) == 0, "--out ", out.string(), ": cannot be written");
}

namespace {

void add_images(Word program, Command& chosen, const ImageData& set, const char* help,
                const std::vector<ImageSettings>& presets) {
  const Word app = program.add(set.name, help);
  add_training<ImageSettings>(app, chosen, "train a model on these images", presets, train_images);
  EvaluateOptions options;
  options.set = &set;
  add_command<EvaluateOptions>(app, chosen, "evaluate", "bits/dim on the test images, and where they are spent",
                               evaluate, options);
  add_drawing(app, chosen, set);
}

}  // namespace

void add_mnist(Word program, Command& chosen) {
  add_images(program, chosen, mnist, "images of digits, byte after byte", mnist_presets());
}
void add_cifar10(Word program, Command& chosen) {
  add_images(program, chosen, cifar10, "small colour photographs, byte after byte", cifar10_presets());
}

}  // namespace runnel
