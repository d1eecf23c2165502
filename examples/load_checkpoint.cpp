// Loads a model of images that `runnel mnist train` has left in a run folder, draws an image and writes it as a PNG:
//
//   example_load_checkpoint runs/mnist image.png [seed]
#include <runnel/engine/check.h>
#include <runnel/models/checkpoint.h>
#include <runnel/models/generation.h>
#include <cstdio>
#include <string>

#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>

using namespace runnel;

int main(int argc, char** argv) try {
  check(argc >= 3, "usage: example_load_checkpoint <run folder> <file.png> [seed]");
  const Checkpoint checkpoint = read_checkpoint(argv[1]);  // its best checkpoint, else its last
  const AutoregressiveTransformer model = load_model<AutoregressiveTransformer>(checkpoint);
  const int side = checkpoint.config.at("side"), channels = checkpoint.data.value("channels", 1);
  const Key key{argc > 3 ? std::stoull(argv[3]) : 1};

  // Either the model predicts every byte, given the class, or every byte but the first, which is drawn as often as it
  // is the first byte of a training image.
  std::vector<uint8_t> image(static_cast<size_t>(side) * side * channels);
  const int64_t classes = model.config.vocabulary - 256;
  std::vector<int32_t> wanted;
  if (classes > 0) {
    wanted.push_back(static_cast<int32_t>(key.below(0, static_cast<uint32_t>(classes))));
  } else {
    const std::vector<double> counts = checkpoint.data.at("first_bytes");
    double left = 0;
    for (const double count : counts) left += key.uniform(0) * count;
    while ((left -= counts[image[0]]) >= 0) ++image[0];
  }
  const auto decoder = incremental_decoder(model, 1);  // reads and predicts a byte at a time
  sample_bytes(image, classes > 0 ? 0 : 1, *decoder, {0}, {key}, 1, {}, wanted);

  check(stbi_write_png(argv[2], side, side, channels, image.data(), side * channels), argv[2], ": cannot be written");
  std::printf("%s: task %s, %lld updates\n%s: %d x %d\n", checkpoint.path.c_str(), checkpoint.task.c_str(),
              static_cast<long long>(checkpoint.step()), argv[2], side, side);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
