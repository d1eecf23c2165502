// complete: test images, or pictures of the user's own, of which only the beginning is given.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <numeric>

#include "apps/images/images.h"
#include "datasets/image_file.h"
#include "engine/check.h"
#include "engine/text.h"
#include "models/generation.h"

namespace runnel {
namespace {

struct CompleteOptions : DrawOptions {
  std::string data;
  std::string index = "0-9";
  std::vector<std::string> image;
  std::string own_class = "-1";
  int64_t keep = 0;
  int64_t ways = 3;

  Settings list() override {
    return extended(
        DrawOptions::list(),
        {{"data", &data, {}, "as in train; default: what the model was trained on"},
         {"index", &index, {}, "test images, counted from 0: 3 or 0-9 or 1,5,20-25"},
         {"image", &image, {}, "PNG or JPEG files to complete instead of test images"},
         {"class", &own_class, {}, "class of the --image files, by number or name (train --classes)"},
         {"keep", &keep, in_range(0, 1e6), "bytes of each image that the model is given; 0: 300 of 784, or half"},
         {"ways", &ways, in_range(1, 64), "different completions of each image"}});
  }
};

// The user's own pictures, cropped and scaled to the model's size. Files that are no pictures are skipped and named.
ImageSet own_images(const LoadedImageModel& loaded, const std::vector<std::string>& files, int32_t label) {
  ImageSet all;
  all.name = "own pictures";
  all.height = all.width = loaded.side;
  all.channels = loaded.channels;
  int64_t skipped = 0;
  for (const std::string& file : files) try {
      const ImageSet one = load_image_file(file, loaded.side, loaded.channels);
      all.pixels.insert(all.pixels.end(), one.pixels.begin(), one.pixels.end());
      all.labels.push_back(label);
      ++all.count;
    } catch (const Error& error) {
      fmt::print(stderr, "skipped: {}\n", error.what());
      ++skipped;
    }
  check(all.count > 0, "--image: none of the ", files.size(), " files is a picture that can be read");
  if (skipped) fmt::print(stderr, "{} of {} files skipped\n", skipped, files.size());
  return all;
}

int complete_images(CompleteOptions& o) {
  const LoadedImageModel loaded(o, "completions.png");
  std::error_code none;
  for (const std::string& file : o.image)
    check(!std::filesystem::equivalent(file, loaded.out, none), "--out ", loaded.out.string(),
          ": this is one of the pictures to complete; choose another name");
  const int64_t own_class = loaded.class_number(o.own_class);
  const ImageSet images = o.image.empty()
                              ? loaded.test_images(o.data)
                              : own_images(loaded, o.image, static_cast<int32_t>(std::max<int64_t>(own_class, 0)));
  const int64_t n = images.size(), whole = loaded.dataset.side * loaded.dataset.side * loaded.dataset.channels;
  const int64_t keep =
      o.keep ? o.keep : std::max<int64_t>(1, loaded.dataset.keep ? n * loaded.dataset.keep / whole : n / 2);
  check<UsageError>(keep < n, "--keep ", keep, ": images have ", n, " bytes, so give 1 to ", n - 1);
  std::vector<int64_t> index(static_cast<size_t>(images.count));
  std::iota(index.begin(), index.end(), 0);
  if (o.image.empty()) index = parse_index(o.index, images.count);
  constexpr int64_t max_cells = 10000;
  check<UsageError>(std::ssize(index) * (o.ways + 2) <= max_cells, "complete: ", index.size(), " images in ", o.ways,
                    " ways are more than the ", max_cells, " cells of a sheet; give fewer");
  const Key seed = key_for(o.seed, Purpose::sampling);
  const auto start = std::chrono::steady_clock::now();

  const auto completed_in_all_ways = [&](const std::vector<int64_t>& some) {
    std::vector<int64_t> from;
    std::vector<Key> keys;
    std::vector<uint8_t> completed;
    std::vector<int32_t> classes;
    for (size_t i = 0; i < some.size(); ++i)
      for (int64_t way = 0; way < o.ways; ++way) {
        from.push_back(static_cast<int64_t>(i));
        keys.push_back(seed.fold(static_cast<uint64_t>(some[i])).fold(static_cast<uint64_t>(way)));
        const auto original = images.image(some[i]);
        completed.insert(completed.end(), original.begin(), original.begin() + keep);
        completed.resize(completed.size() + static_cast<size_t>(n - keep));
        if (loaded.class_conditional) classes.push_back(images.labels[static_cast<size_t>(some[i])]);
      }
    // The given bytes are read once per image; the decode state is then copied for each completion.
    const std::unique_ptr<Decoder> given = decoder_for(loaded, o, std::ssize(some));
    for (int64_t t = 0; t < keep + (loaded.class_conditional ? 0 : -1); ++t)
      given->read(tokens_at(images, loaded.class_conditional, some, t, o.chosen_device()));
    sample_bytes(completed, keep, *given, from, keys, static_cast<float>(o.temperature), Progress("drew byte"),
                 classes);
    return completed;
  };
  const std::vector<uint8_t> completed = divided_images(std::ssize(index), [&](int64_t begin, int64_t end) {
    constexpr int64_t at_once = 64;  // whose states are kept
    std::vector<uint8_t> all;
    for (; begin < end; begin += at_once) {
      const std::vector<uint8_t> some =
          completed_in_all_ways({index.begin() + begin, index.begin() + std::min(begin + at_once, end)});
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  });

  std::vector<Picture> cells;  // per image: occluded, completed in `ways` ways, original
  for (int64_t i = 0; i < std::ssize(index); ++i) {
    const auto original = images.image(index[static_cast<size_t>(i)]);
    cells.push_back(loaded.picture_of(original, keep));
    for (int64_t way = 0; way < o.ways; ++way)
      cells.push_back(loaded.picture_of(image_of(completed, i * o.ways + way, n)));
    cells.push_back(loaded.picture_of(original));
  }
  write_png(loaded.out, sheet(cells, o.ways + 2));
  fmt::print("{}: {} images, {}; the first {} of {} bytes, {} completions, the original ({:.2f} s)\n",
             loaded.out.string(), index.size(), images.name, keep, n, o.ways,
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return 0;
}

}  // namespace

std::vector<int64_t> parse_index(const std::string& text, int64_t count) {
  const auto wrong = [&] {
    fail<UsageError>("--index ", excerpt(text), ": give numbers from 0 to ", count - 1, ", as 3 or 0-9 or 1,5,20-25");
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

void add_complete(Subcommand task, const ImageDataset& dataset) {
  add_command<CompleteOptions>(task, dataset, "complete", "complete images of which only the beginning is given",
                               complete_images);
}

}  // namespace runnel
