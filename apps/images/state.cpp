// state: the attention state of a layer while it reads a test image.
#include <fmt/format.h>

#include <algorithm>

#include "apps/images/images.h"
#include "apps/images/state_means.h"
#include "engine/check.h"
#include "engine/text.h"

namespace runnel {
namespace {

struct StateOptions : PictureOptions {
  std::string data;
  std::string index = "0";
  int64_t layer = 0;

  Settings list() override {
    return extended(PictureOptions::list(),
                    {{"data", &data, {}, "as in train; default: what the model was trained on"},
                     {"index", &index, {}, "test images to read, counted from 0: 3 or 0-3 or 1,5,20-25; at most 64"},
                     {"layer", &layer, in_range(0, 1023), "layer whose state is shown, counted from 0"}});
  }
};

// The states of a layer's heads while it reads an image: S[e,m] / Z[e] is the mean of the values that feature e
// has seen. A row for the image as far as it has been read, then one for each head, [E,M], brighter where the mean is
// larger in magnitude; each head has a scale of its own.
void add_rows(std::vector<Picture>& cells, const LoadedImageModel& loaded, const ImageSet& images, int64_t index,
              int64_t layer) {
  const AutoregressiveConfig& c = loaded.model.config;
  std::vector<std::vector<float>> shown;  // at each stage: [H,E,M]
  int64_t features = 0;                   // E
  const std::unique_ptr<Decoder> reader = incremental_decoder(loaded.model, 1);
  for (int64_t t = 0; t < c.max_length; ++t) {
    reader->read(tokens_at(images, loaded.class_conditional, {index}, t, loaded.model.device()));
    if ((t + 1) * stages / c.max_length == t * stages / c.max_length) continue;
    const AttentionState state = reader->recurrent_state(layer);
    features = state.s.shape()[2];
    shown.push_back(state_means(state));
  }
  const int64_t values = c.encoder.head_dim, matrix = features * values;
  const auto cell = [](const Picture& p) { return resized(p, 96, 96); };
  for (int64_t stage = 1; stage <= stages; ++stage)
    cells.push_back(cell(loaded.picture_of(images.image(index), loaded.image_size() * stage / stages)));
  for (int64_t head = 0; head < c.encoder.heads; ++head) {
    std::vector<double> means;  // at all stages
    for (const std::vector<float>& all : shown)
      means.insert(means.end(), all.begin() + head * matrix, all.begin() + (head + 1) * matrix);
    const double largest = *std::max_element(means.begin(), means.end());
    for (int64_t stage = 0; stage < stages; ++stage)
      cells.push_back(
          cell(heat(std::span(means).subspan(static_cast<size_t>(stage * matrix), static_cast<size_t>(matrix)),
                    features, values, largest)));
  }
}

int show_state(StateOptions& o) {
  const LoadedImageModel loaded(o, "state.png");
  const AutoregressiveConfig& c = loaded.model.config;
  const std::string& kind = c.encoder.attention.kind;
  check<UsageError>(has_recurrent_state(loaded.model), "state: ", loaded.checkpoint.path.string(), " has ", kind,
                    " attention, which has no state of constant size");
  check<UsageError>(o.layer < c.encoder.layers, "--layer ", o.layer, ": the model has ", c.encoder.layers,
                    " layers, counted from 0");
  const ImageSet images = loaded.test_images(o.data);
  const std::vector<int64_t> numbers = parse_index(o.index, images.count);
  check<UsageError>(numbers.size() <= 64, "--index ", excerpt(o.index), ": ", numbers.size(),
                    " images; a sheet shows at most 64");

  std::vector<Picture> cells;
  const Progress progress("read image");
  for (const int64_t index : numbers) {
    add_rows(cells, loaded, images, index, o.layer);
    progress(std::ssize(cells) / (stages * (1 + c.encoder.heads)), std::ssize(numbers));
  }
  write_png(loaded.out, sheet(cells, stages, 1));
  fmt::print(
      "{}: {} {} of {} as far as it has been read, and |S / Z| of layer {}, a row for each head: E down, M across\n",
      loaded.out.string(), numbers.size() == 1 ? "image" : "images", o.index, images.name, o.layer);
  return 0;
}

}  // namespace

void add_state(Subcommand task, const ImageDataset& dataset) {
  add_command<StateOptions>(task, dataset, "state", "the state S, Z of linear attention while it reads a test image",
                            show_state);
}

}  // namespace runnel
