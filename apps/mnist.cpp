// runnel mnist: images as sequences of bytes, one after another, the paper's section 4.2.1. The model reads bytes
// 0 .. n-2 and says of each next byte how likely its 256 values are, as a mixture of 10 logistics. There is no start
// token: the first byte is only an input, and sampling starts from 0, which it is in every image of MNIST.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <numbers>
#include <numeric>

#include "apps/options.h"
#include "apps/pictures.h"
#include "apps/training.h"
#include "datasets/mnist.h"
#include "datasets/synthetic_digits.h"
#include "engine/check.h"
#include "models/generation.h"
#include "ops/ops.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

constexpr int64_t components = 10;  // of the mixture
constexpr int64_t held_out = 200;   // images at the end of the training set that choose the best checkpoint instead

struct MnistSettings : Settings {
  int64_t side = 28;
  std::string position = "line";
  std::string data;

  template <class Each>
  void each(Each&& option) {
    Settings::each(option);
    option("side", side, one_of({"28", "14", "7"}), "height and width of the images; below 28 they are scaled down");
    option("position", position, one_of({"line", "grid"}),
           "what is coded of a byte's place: its number, as in the paper, or its row and column");
    option("data", data, CLI::Validator(), "folder with MNIST ($RUNNEL_DATA or ./data if not given), or: synthetic");
  }
};

struct UseOptions : Machine {
  std::string model, out;

  template <class Each>
  void each(Each&& option) {
    Machine::each(option);
    option("model", model, CLI::Validator(), "a run folder, or a .safetensors file");
    option("out", out, CLI::Validator(), "the PNG file to write; beside the checkpoint if not given");
  }
};

struct EvaluateOptions : UseOptions {
  std::string data;
  int64_t limit = 0;

  template <class Each>
  void each(Each&& option) {
    UseOptions::each(option);
    option("data", data, CLI::Validator(), "as in train; what the model was trained on if not given");
    option("limit", limit, in_range(0, 1e9), "only the first so many test images; 0: all");
  }
};

struct DrawOptions : UseOptions {
  double temperature = 1;
  bool stateful = false;

  template <class Each>
  void each(Each&& option) {
    UseOptions::each(option);
    option("temperature", temperature, in_range(0.01, 10), "below 1: sharper than what was learned");
    option("stateful", stateful, CLI::Validator(),
           "softmax attention keeps keys and values instead of reading everything again for each byte");
  }
};

struct SampleOptions : DrawOptions {
  int64_t count = 64;

  template <class Each>
  void each(Each&& option) {
    DrawOptions::each(option);
    option("count", count, in_range(1, 10000), "images to generate");
  }
};

struct CompleteOptions : DrawOptions {
  std::string data;
  std::string index = "0-9";
  int64_t keep = 0;
  int64_t ways = 3;

  template <class Each>
  void each(Each&& option) {
    DrawOptions::each(option);
    option("data", data, CLI::Validator(), "as in train; what the model was trained on if not given");
    option("index", index, CLI::Validator(), "test images, counted from 0: 3 or 0-9 or 1,5,20-25");
    option("keep", keep, in_range(0, 1e6), "bytes of each image that the model is given; 0: 300 of 784");
    option("ways", ways, in_range(1, 64), "different completions of each image");
  }
};

ImageSet load(const std::string& data, Split split, int64_t side) {
  // The drawn digits are one data set, whatever --seed says.
  ImageSet images = data == "synthetic" ? synthetic_digits(split == Split::train ? 60000 : 10000,
                                                           Key{2020}.fold(split == Split::train ? 0 : 1))
                                        : load_mnist(data_directory(data), split);
  while (images.height > side) images = halved(images);
  return images;
}

// One line on the terminal that is written over; nothing when stderr is a file.
void progress(const char* what, int64_t done, int64_t of) {
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "\r{} {} of {}{}", what, done, of, done == of ? "\n" : "");
}

// -log P of each predicted byte in nats, summed over the images: [n-1].
std::vector<double> nll_by_position(const Transformer& model, const ImageSet& images, bool show_progress) {
  constexpr int64_t at_once = 8;  // keeps activations near the caches
  const size_t length = static_cast<size_t>(images.size()) - 1;
  std::vector<double> total(length);
  for (int64_t first = 0; first < images.count; first += at_once) {
    const ByteBatch batch = byte_batch(images, first, std::min(at_once, images.count - first), model.device());
    const std::vector<float> nll = logistic_mixture_nll(model(batch.tokens), batch.targets).to_vector();
    for (size_t i = 0; i < nll.size(); ++i) total[i % length] += nll[i];
    if (show_progress) progress("evaluated", std::min(first + at_once, images.count), images.count);
  }
  return total;
}

// Nats per byte -> bits per byte ("bits/dim").
double mean(const std::vector<double>& total, int64_t images) {
  return std::accumulate(total.begin(), total.end(), 0.0) / static_cast<double>(images) /
         static_cast<double>(total.size());
}

void show_drawn(int64_t bytes, int64_t of) { progress("drew byte", bytes, of); }

// draw(state) with the state of `batch` sequences of which nothing has been read.
template <class Draw>
auto with_state(const Transformer& model, bool stateful, int64_t batch, Draw draw) {
  return stateful ? draw(RecurrentTransformer(model, batch)) : draw(RereadingTransformer(model, batch));
}

std::vector<Picture> generate(const Transformer& model, bool stateful, int64_t side, int64_t count, Key seed,
                              double temperature, bool show_progress) {
  const int64_t n = side * side;
  std::vector<Key> keys;
  for (int64_t i = 0; i < count; ++i) keys.push_back(seed.fold(static_cast<uint64_t>(i)));
  std::vector<uint8_t> images(static_cast<size_t>(count * n));  // the first byte of each is 0
  with_state(model, stateful, 1, [&](const auto& state) {
    complete(images, 1, state, std::vector<int64_t>(keys.size()), keys, static_cast<float>(temperature),
             show_progress ? show_drawn : nullptr);
  });
  std::vector<Picture> pictures;
  for (int64_t i = 0; i < count; ++i)
    pictures.push_back(picture({images.data() + i * n, static_cast<size_t>(n)}, side, side, 1));
  return pictures;
}

int64_t zoom(int64_t side) { return 84 / side; }

int train_mnist(MnistSettings& s) {
  TransformerConfig config = s.model(256, 3 * components, s.side * s.side - 1);
  if (s.position == "grid") config.row = s.side;
  Transformer model(config, key_for(s.seed, Purpose::initialisation), s.where());
  const ImageSet all = load(s.data, Split::train, s.side);
  check(all.count > held_out, all.name, ": ", all.count, " images; training needs more than ", held_out);
  const ImageSet images = slice(all, 0, all.count - held_out), kept = slice(all, all.count - held_out, held_out);
  fmt::print("data: {}, {} images of {} x {}; {} more choose the best checkpoint\n", images.name, images.count, s.side,
             s.side, held_out);

  Task task{.app = "mnist",
            .model = model,
            .tokens = images.size() - 1,
            .bits = true,
            .loss = {},
            .validate = {},
            .preview = {}};
  task.loss = [&](int64_t first, int64_t count, Key key) {
    const ByteBatch bytes = byte_batch(images, first, count, model.device());
    const Tensor nll = logistic_mixture_nll(model(bytes.tokens, key), bytes.targets);
    return scale(sum(nll), 1 / static_cast<float>(nll.size()));
  };
  task.validate = [&] { return mean(nll_by_position(model, kept, false), kept.count); };
  task.preview = [&](const fs::path& png) {
    const bool stateful = config.attention != Attention::lsh;
    const int64_t count = stateful ? 16 : 2;  // which then take as long as many
    write_png(png, sheet(generate(model, stateful, s.side, count, key_for(s.seed, Purpose::sampling), 1, false), 8,
                         zoom(s.side)));
  };
  return train(task, s, to_json(s));
}

// A trained model and where its picture goes.
struct Use {
  Checkpoint checkpoint;
  int64_t side;
  std::string data;  // that it was trained on
  fs::path out;

  Use(const UseOptions& o, const char* picture_name) : checkpoint(load_checkpoint(o.model, "mnist", o.where())) {
    try {
      checkpoint.config.at("side").get_to(side);
      checkpoint.config.at("data").get_to(data);
    } catch (const nlohmann::json::exception&) {
      fail(checkpoint.path.string(), " is damaged: it does not say what images it was trained on");
    }
    const TransformerConfig& c = checkpoint.model.config();
    check(side * side == c.max_length + 1 && c.vocabulary == 256 && c.outputs == 3 * components,
          checkpoint.path.string(), ": not a model of images of ", side, " x ", side);
    out = o.out.empty() ? checkpoint.path.parent_path() / picture_name : fs::path(o.out);
    const fs::path folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
    check(access(folder.c_str(), W_OK) == 0 && !fs::is_directory(out), "--out ", out.string(), ": cannot be written");
  }

  bool stateful(const DrawOptions& o) const {
    const Attention attention = checkpoint.model.config().attention;
    check<UsageError>(!o.stateful || attention != Attention::lsh, "--stateful: lsh attention has no state");
    return o.stateful || attention == Attention::linear;
  }
  ImageSet test_images(const std::string& given) const { return load(given.empty() ? data : given, Split::test, side); }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int evaluate(EvaluateOptions& o) {
  const Use use(o, "bits.png");
  ImageSet images = use.test_images(o.data);
  if (o.limit && o.limit < images.count) images = slice(images, 0, o.limit);

  std::vector<double> bits = nll_by_position(use.checkpoint.model, images, true);
  for (double& b : bits) b /= std::numbers::ln2;
  fmt::print("{:.4f} bits/dim over {} bytes of each of {} images of {} x {}, {}\n", mean(bits, images.count),
             bits.size(), images.count, use.side, use.side, images.name);

  for (double& b : bits) b /= static_cast<double>(images.count);
  const double largest = *std::max_element(bits.begin(), bits.end());
  bits.insert(bits.begin(), 0);  // the first byte is not predicted
  write_png(use.out, heat_map(bits, use.side, use.side, largest, 4 * zoom(use.side)));
  fmt::print("{}: mean bits of each byte, from 0 (black) to {:.2f} (pale yellow)\n", use.out.string(), largest);
  return 0;
}

int sample(SampleOptions& o) {
  const Use use(o, "samples.png");
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Picture> pictures = generate(use.checkpoint.model, use.stateful(o), use.side, o.count,
                                                 key_for(o.seed, Purpose::sampling), o.temperature, true);
  const double seconds = seconds_since(start);
  fmt::print("{} images of {} x {} in {:.2f} s: {:.2f} images/s\n", o.count, use.side, use.side, seconds,
             static_cast<double>(o.count) / seconds);
  const int64_t columns = std::llround(std::ceil(std::sqrt(static_cast<double>(o.count))));
  write_png(use.out, sheet(pictures, columns, zoom(use.side)));
  fmt::print("{}\n", use.out.string());
  return 0;
}

// "1,5,20-25" -> 1 5 20 21 22 23 24 25
std::vector<int64_t> parse_index(const std::string& text, int64_t count) {
  const auto wrong = [&] {
    fail<UsageError>("--index ", text, ": give numbers from 0 to ", count - 1, ", as 3 or 0-9 or 1,5,20-25");
  };
  std::vector<int64_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&] {
    int64_t n = 0;
    const auto [after, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 0 || n >= count) wrong();
    at = after;
    return n;
  };
  while (true) {
    const int64_t first = number();
    int64_t last = first;
    if (at < end && *at == '-') {
      ++at;
      last = number();
    }
    if (last < first) wrong();
    for (int64_t n = first; n <= last; ++n) numbers.push_back(n);
    if (at == end) return numbers;
    if (*at++ != ',') wrong();
  }
}

int complete_images(CompleteOptions& o) {
  const Use use(o, "completions.png");
  const ImageSet images = use.test_images(o.data);
  const int64_t n = images.size(), keep = o.keep ? o.keep : std::max<int64_t>(1, n * 300 / 784);
  check<UsageError>(keep < n, "--keep ", keep, ": images have ", n, " bytes, so give 1 to ", n - 1);
  const std::vector<int64_t> index = parse_index(o.index, images.count);
  const Key seed = key_for(o.seed, Purpose::sampling);
  const auto start = std::chrono::steady_clock::now();

  std::vector<Picture> cells;     // per image: occluded, completed in `ways` ways, original
  constexpr size_t at_once = 64;  // whose states are kept
  for (size_t first = 0; first < index.size(); first += at_once) {
    const std::vector<int64_t> some(
        index.begin() + static_cast<std::ptrdiff_t>(first),
        index.begin() + static_cast<std::ptrdiff_t>(std::min(first + at_once, index.size())));
    std::vector<int64_t> from;
    std::vector<Key> keys;
    std::vector<uint8_t> completed;
    for (size_t i = 0; i < some.size(); ++i)
      for (int64_t way = 0; way < o.ways; ++way) {
        from.push_back(static_cast<int64_t>(i));
        keys.push_back(seed.fold(static_cast<uint64_t>(some[i])).fold(static_cast<uint64_t>(way)));
        const auto image = images.image(some[i]);
        completed.insert(completed.end(), image.begin(), image.begin() + keep);
        completed.resize(completed.size() + static_cast<size_t>(n - keep));
      }
    // What is given is read once per image; its state is then cloned for each way.
    const int64_t count = std::ssize(some);
    with_state(use.checkpoint.model, use.stateful(o), count, [&](auto given) {
      std::vector<int32_t> tokens(some.size());
      for (int64_t t = 0; t + 1 < keep; ++t) {
        for (size_t i = 0; i < some.size(); ++i) tokens[i] = images.image(some[i])[static_cast<size_t>(t)];
        given.read(Indices(Shape{count}, tokens, o.where()));
      }
      complete(completed, keep, given, from, keys, static_cast<float>(o.temperature), show_drawn);
    });

    for (size_t i = 0; i < some.size(); ++i) {
      const auto as_picture = [&](std::span<const uint8_t> bytes, int64_t known) {
        return picture(bytes, use.side, use.side, 1, known);
      };
      cells.push_back(as_picture(images.image(some[i]), keep));
      for (int64_t way = 0; way < o.ways; ++way) {
        const int64_t number = static_cast<int64_t>(i) * o.ways + way;
        cells.push_back(as_picture({completed.data() + number * n, static_cast<size_t>(n)}, n));
      }
      cells.push_back(as_picture(images.image(some[i]), n));
    }
  }
  write_png(use.out, sheet(cells, o.ways + 2, zoom(use.side)));
  fmt::print("{}: {} images, {}; the first {} of {} bytes, {} completions, the original ({:.2f} s)\n", use.out.string(),
             index.size(), images.name, keep, n, o.ways, seconds_since(start));
  return 0;
}

std::vector<MnistSettings> presets() {
  MnistSettings paper;
  paper.layers = 8;
  paper.batch = 10;
  paper.steps = 1500000;  // 250 epochs
  paper.lr = 1e-4;
  paper.schedule = "constant";
  paper.buckets = 64;
  paper.chunk = 29;
  paper.evaluate_every = paper.save_every = 1000;

  // Found by trying. In so little time a model's loss follows the number of images that it has seen, hardly its size:
  // narrow layers see more. A learning rate that begins high and is low for most of the run matters much; clipping
  // tightly and forgetting old squares soon (beta2) keep it from diverging. Most matters that it need not find out
  // where the pixels above are (models/initial.h): heads as wide as a row is long then tell all columns apart.
  MnistSettings small = paper;
  small.preset = "small";
  small.precision = "auto";
  small.position = "grid";
  small.layers = 4;
  small.width = 96;
  small.heads = 3;
  small.feed_forward = 256;
  small.dropout = 0;
  small.batch = 8;
  small.steps = 1000000;
  small.minutes = 20;
  small.lr = 3e-3;
  small.weight_decay = 0;  // it would blunt what the heads begin with
  small.beta2 = 0.98;
  small.clip = 0.1;
  small.schedule = "quadratic";
  small.log_every = 100;
  small.evaluate_every = small.save_every = 5000;

  MnistSettings tiny = small;
  tiny.preset = "tiny";
  tiny.side = 14;
  tiny.layers = 3;
  tiny.heads = 2;
  tiny.feed_forward = 384;
  tiny.evaluate_every = tiny.save_every = 2000;
  tiny.minutes = 3.5;
  return {paper, small, tiny};
}

}  // namespace

void add_mnist(CLI::App& program, Command& chosen) {
  CLI::App* mnist = program.add_subcommand("mnist", "images of digits, byte after byte");
  add_training<MnistSettings>(*mnist, chosen, "train a model on MNIST", presets(), train_mnist);
  add_command<EvaluateOptions>(*mnist, chosen, "evaluate", "bits/dim on the test images, and where they are spent",
                               evaluate);
  add_command<SampleOptions>(*mnist, chosen, "sample", "generate images", sample);
  add_command<CompleteOptions>(*mnist, chosen, "complete", "complete test images of which only the beginning is given",
                               complete_images);
}

}  // namespace runnel
