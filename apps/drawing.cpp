// What a trained model of images is used for: sample, complete, and state, which shows what linear attention remembers.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <numeric>

#include "apps/images.h"
#include "engine/check.h"
#include "models/generation.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

struct DrawOptions : UseOptions {
  double temperature = 1;
  bool stateful = false;

  template <class Each>
  void each(Each&& option) {
    UseOptions::each(option);
    option("temperature", temperature, in_range(0.01, 10), "below 1: sharper than what was learned");
    option("stateful", stateful, Allowed(),
           "softmax attention keeps keys and values instead of reading everything again for each byte");
  }
};

struct SampleOptions : DrawOptions {
  int64_t count = 64;
  int64_t wanted = -1;
  bool growth = false, single = false;

  template <class Each>
  void each(Each&& option) {
    DrawOptions::each(option);
    option("count", count, in_range(1, 1e7), "images to generate");
    option("class", wanted, in_range(-1, 9), "of a model trained with --classes; -1: each in turn");
    option("growth", growth, Allowed(), "show how each image grows");
    option("single", single, Allowed(), "a PNG of its own for each image, in the folder --out");
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
    option("data", data, Allowed(), "as in train; what the model was trained on if not given");
    option("index", index, Allowed(), "test images, counted from 0: 3 or 0-9 or 1,5,20-25");
    option("keep", keep, in_range(0, 1e6),
           "bytes of each image that the model is given; 0: 300 of 784, or half of 3072");
    option("ways", ways, in_range(1, 64), "different completions of each image");
  }
};

struct StateOptions : UseOptions {
  std::string data;
  int64_t index = 0;
  int64_t layer = 0;

  template <class Each>
  void each(Each&& option) {
    UseOptions::each(option);
    option("data", data, Allowed(), "as in train; what the model was trained on if not given");
    option("index", index, in_range(0, 1e9), "the test image that is read, counted from 0");
    option("layer", layer, in_range(0, 1023), "whose state is shown, counted from 0");
  }
};

constexpr int64_t stages = 8;  // at which something that grows is shown

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// draw(state) with the state of `batch` sequences of which nothing has been read.
template <class Draw>
auto with_state(const Transformer& model, bool stateful, int64_t batch, Draw draw) {
  return stateful ? draw(RecurrentTransformer(model, batch)) : draw(RereadingTransformer(model, batch));
}

bool is_stateful(const Use& use, const DrawOptions& o) {
  const Attention attention = use.checkpoint.model.config().attention;
  check<UsageError>(!o.stateful || attention != Attention::lsh, "--stateful: lsh attention has no state");
  return o.stateful || attention == Attention::linear;
}

std::span<const uint8_t> image(const std::vector<uint8_t>& images, int64_t i, int64_t size) {
  return {images.data() + i * size, static_cast<size_t>(size)};
}

int sample(SampleOptions& o) {
  constexpr int64_t cells = 10000, at_once = 16384;
  const int64_t largest = o.growth ? cells / stages : cells;
  check<UsageError>(!o.single || !o.growth, "--growth and --single: give one of them");
  check<UsageError>(o.single || o.count <= largest, "--count ", o.count, ": a sheet shows at most ", largest,
                    "; --single writes each to a file of its own");
  const Use use(o, o.single ? "images" : o.growth ? "growth.png" : "samples.png", o.single);
  check<UsageError>(use.classes || o.wanted < 0, "--class ", o.wanted, ": ", use.checkpoint.path.string(),
                    " was not trained with --classes");
  const bool stateful = is_stateful(use, o);
  if (o.single) use.make_folder();
  const auto start = std::chrono::steady_clock::now();
  std::vector<Picture> pictures;
  const int64_t n = use.image_size();
  for (int64_t first = 0; first < o.count; first += at_once) {
    const int64_t count = std::min(at_once, o.count - first);
    const std::vector<uint8_t> drawn = generate(use.checkpoint.model, stateful, key_for(o.seed, Purpose::sampling),
                                                first, count, use.first_bytes, o.wanted, o.temperature, true);
    for (int64_t i = 0; i < count; ++i) {
      if (o.single) write_png(use.out / fmt::format("{:05}.png", first + i), use.picture_of(image(drawn, i, n)));
      for (int64_t stage = 1; o.growth && stage < stages; ++stage)
        pictures.push_back(use.picture_of(image(drawn, i, n), n * stage / stages));
      if (!o.single) pictures.push_back(use.picture_of(image(drawn, i, n)));
    }
  }
  const double seconds = seconds_since(start);
  fmt::print("{} images of {} x {} in {:.2f} s: {:.2f} images/s\n", o.count, use.side, use.side, seconds,
             static_cast<double>(o.count) / seconds);
  const int64_t columns = o.growth ? stages : std::llround(std::ceil(std::sqrt(static_cast<double>(o.count))));
  if (!o.single) write_png(use.out, sheet(pictures, columns));
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

// What a model reads as token t of these images: [B].
Indices tokens_at(const ImageSet& images, bool classes, const std::vector<int64_t>& numbers, int64_t t, Device device) {
  std::vector<int32_t> tokens;
  for (const int64_t i : numbers) {
    const int64_t byte = t - (classes ? 1 : 0);
    tokens.push_back(byte < 0 ? 256 + images.labels[static_cast<size_t>(i)]
                              : images.image(i)[static_cast<size_t>(byte)]);
  }
  return Indices(Shape{std::ssize(tokens)}, tokens, device);
}

int complete_images(CompleteOptions& o) {
  const Use use(o, "completions.png");
  const ImageSet images = use.test_images(o.data);
  const int64_t n = images.size(), whole = use.set.side * use.set.side * use.set.channels;
  const int64_t keep = o.keep ? o.keep : std::max<int64_t>(1, n * use.set.keep / whole);
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
    std::vector<uint8_t> completed, classes;
    for (size_t i = 0; i < some.size(); ++i)
      for (int64_t way = 0; way < o.ways; ++way) {
        from.push_back(static_cast<int64_t>(i));
        keys.push_back(seed.fold(static_cast<uint64_t>(some[i])).fold(static_cast<uint64_t>(way)));
        const auto original = images.image(some[i]);
        completed.insert(completed.end(), original.begin(), original.begin() + keep);
        completed.resize(completed.size() + static_cast<size_t>(n - keep));
        if (use.classes) classes.push_back(images.labels[static_cast<size_t>(some[i])]);
      }
    // What is given is read once per image; its state is then cloned for each way.
    const int64_t count = std::ssize(some);
    with_state(use.checkpoint.model, is_stateful(use, o), count, [&](auto given) {
      for (int64_t t = 0; t < keep + (use.classes ? 0 : -1); ++t)
        given.read(tokens_at(images, use.classes, some, t, o.where()));
      complete(completed, keep, given, from, keys, static_cast<float>(o.temperature), Progress("drew byte"), classes);
    });

    for (size_t i = 0; i < some.size(); ++i) {
      cells.push_back(use.picture_of(images.image(some[i]), keep));
      for (int64_t way = 0; way < o.ways; ++way)
        cells.push_back(use.picture_of(image(completed, static_cast<int64_t>(i) * o.ways + way, n)));
      cells.push_back(use.picture_of(images.image(some[i])));
    }
  }
  write_png(use.out, sheet(cells, o.ways + 2));
  fmt::print("{}: {} images, {}; the first {} of {} bytes, {} completions, the original ({:.2f} s)\n", use.out.string(),
             index.size(), images.name, keep, n, o.ways, seconds_since(start));
  return 0;
}

// What the heads of a layer remember while it reads an image: S[e,m] / Z[e] is the mean of the values that feature e
// has seen. A row for the image as far as it has been read, then one for each head, [E,M], brighter where the mean is
// larger in magnitude; each head has a scale of its own.
int show_state(StateOptions& o) {
  const Use use(o, "state.png");
  const TransformerConfig& c = use.checkpoint.model.config();
  check<UsageError>(c.attention == Attention::linear, "state: ", use.checkpoint.path.string(), " has ",
                    name(c.attention), " attention, which has no state of constant size");
  check<UsageError>(o.layer < c.layers, "--layer ", o.layer, ": the model has ", c.layers, " layers, counted from 0");
  const ImageSet images = use.test_images(o.data);
  check<UsageError>(o.index < images.count, "--index ", o.index, ": give a number from 0 to ", images.count - 1);

  std::vector<std::vector<float>> s, z;  // at each stage: [H,E,M] [H,E]
  RecurrentTransformer reader(use.checkpoint.model, 1);
  for (int64_t t = 0; t < c.max_length; ++t) {
    reader.read(tokens_at(images, use.classes, {o.index}, t, o.where()));
    if ((t + 1) * stages / c.max_length == t * stages / c.max_length) continue;
    s.push_back(reader.state(o.layer).s.to_vector());
    z.push_back(reader.state(o.layer).z.to_vector());
  }
  const int64_t matrix = c.head_dim * c.head_dim;
  std::vector<Picture> cells;
  const auto cell = [](const Picture& p) { return resized(p, 96, 96); };
  for (int64_t stage = 1; stage <= stages; ++stage)
    cells.push_back(cell(use.picture_of(images.image(o.index), use.image_size() * stage / stages)));
  for (int64_t head = 0; head < c.heads; ++head) {
    std::vector<double> means;  // at all stages
    for (size_t stage = 0; stage < s.size(); ++stage)
      for (int64_t i = head * matrix; i < (head + 1) * matrix; ++i)
        if (const float seen = z[stage][static_cast<size_t>(i / c.head_dim)]; seen > 0)
          means.push_back(std::abs(s[stage][static_cast<size_t>(i)] / seen));
        else
          means.push_back(0);
    const double largest = *std::max_element(means.begin(), means.end());
    for (int64_t stage = 0; stage < stages; ++stage)
      cells.push_back(
          cell(heat(std::span(means).subspan(static_cast<size_t>(stage * matrix), static_cast<size_t>(matrix)),
                    c.head_dim, c.head_dim, largest)));
  }
  write_png(use.out, sheet(cells, stages, 1));
  fmt::print(
      "{}: image {} of {} as far as it has been read, and |S / Z| of layer {}, a row for each head: E down, M across\n",
      use.out.string(), o.index, images.name, o.layer);
  return 0;
}

}  // namespace

std::vector<uint8_t> generate(const Transformer& model, bool stateful, Key seed, int64_t first, int64_t count,
                              const std::vector<int64_t>& first_bytes, int64_t wanted, double temperature,
                              bool show_progress) {
  const bool told = model.config().vocabulary > 256;
  const int64_t n = model.config().max_length + (told ? 0 : 1);
  const double all = static_cast<double>(std::accumulate(first_bytes.begin(), first_bytes.end(), int64_t{0}));
  std::vector<Key> keys;
  std::vector<uint8_t> images(static_cast<size_t>(count * n)), classes;
  for (int64_t i = 0; i < count; ++i) {
    keys.push_back(seed.fold(static_cast<uint64_t>(first + i)));
    double left = keys.back().uniform(0) * all;
    uint8_t byte = 0;
    while (byte < 255 && (left -= static_cast<double>(first_bytes[byte])) >= 0) ++byte;
    if (told)
      classes.push_back(static_cast<uint8_t>(wanted < 0 ? (first + i) % 10 : wanted));
    else
      images[static_cast<size_t>(i * n)] = byte;
  }
  std::function<void(int64_t, int64_t)> progress;
  if (show_progress) progress = Progress("drew byte");
  with_state(model, stateful, 1, [&](const auto& state) {
    complete(images, told ? 0 : 1, state, std::vector<int64_t>(keys.size()), keys, static_cast<float>(temperature),
             progress, classes);
  });
  return images;
}

void add_drawing(Word app, Command& chosen, const ImageData& set) {
  const auto add = [&](const char* command, const char* help, auto options, auto run) {
    options.set = &set;
    add_command<decltype(options)>(app, chosen, command, help, run, options);
  };
  add("sample", "generate images", SampleOptions(), sample);
  add("complete", "complete test images of which only the beginning is given", CompleteOptions(), complete_images);
  add("state", "what linear attention remembers while it reads a test image", StateOptions(), show_state);
}

}  // namespace runnel
