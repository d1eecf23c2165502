// A small convolutional network on MNIST. A convolution is the product of an image's windows with a matrix, and pooling
// the largest number of each window: two ops each.
//
//   example_convolution data [epochs]      the folder of the four IDX files
#include <runnel/datasets/mnist.h>
#include <runnel/engine/check.h>
#include <runnel/engine/tape.h>
#include <runnel/models/layers.h>
#include <runnel/models/optimizer.h>
#include <runnel/ops/ops.h>
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>

using namespace runnel;

struct Network {
  Linear first = random_linear(16, 5 * 5, Key{1}, Device::cpu),
         second = random_linear(32, 5 * 5 * 16, Key{2}, Device::cpu);
  Linear hidden = random_linear(128, 7 * 7 * 32, Key{3}, Device::cpu),
         output = random_linear(10, 128, Key{4}, Device::cpu);

  static Tensor convolve(const Tensor& x, const Linear& layer) {  // [B,H,W,C] -> [B,H,W,channels]
    return layer(unfold(x, {.height = 5, .width = 5, .padding = 2}), Activation::relu);
  }
  static Tensor halve(const Tensor& x) {  // [B,H,W,C] -> [B,H/2,W/2,C]: the largest of 2 x 2
    const Tensor windows = unfold(x, {.height = 2, .width = 2, .stride = 2});
    const Shape& s = windows.shape();
    return max(reshape(windows, {s[0], s[1], s[2], 4, x.shape()[3]}), 3);
  }
  Tensor operator()(const Tensor& x) const {  // [B,28,28,1] -> [B,10]
    const Tensor features = halve(convolve(halve(convolve(x, first)), second));
    return output(hidden(reshape(features, {x.shape()[0], 7 * 7 * 32}), Activation::relu));
  }
  Parameters parameters() const {
    Parameters all;
    append(all, "first", first), append(all, "second", second), append(all, "hidden", hidden),
        append(all, "output", output);
    return all;
  }
};

struct Batch {
  Tensor x;
  Indices labels;
};
Batch batch_of(const ImageSet& set, std::span<const int64_t> images) {
  std::vector<float> pixels;
  std::vector<int32_t> labels;
  for (const int64_t i : images) {
    for (const uint8_t pixel : set.image(i)) pixels.push_back(static_cast<float>(pixel) / 255);
    labels.push_back(set.labels[static_cast<size_t>(i)]);
  }
  const auto n = static_cast<int64_t>(images.size());
  return {Tensor(Shape{n, 28, 28, 1}, pixels), Indices(Shape{n}, labels)};
}

double accuracy(const Network& network, const ImageSet& set) {
  int64_t right = 0;
  std::vector<int64_t> images(static_cast<size_t>(set.count));
  std::iota(images.begin(), images.end(), 0);
  for (size_t first = 0; first < images.size(); first += 500) {
    const Batch batch = batch_of(set, std::span(images).subspan(first, std::min<size_t>(500, images.size() - first)));
    const std::vector<int32_t> found = argmax(network(batch.x)).to_vector(), labels = batch.labels.to_vector();
    for (size_t i = 0; i < found.size(); ++i) right += found[i] == labels[i];
  }
  return static_cast<double>(right) / static_cast<double>(set.count);
}

int main(int argc, char** argv) try {
  check(argc >= 2, "usage: example_convolution <folder of MNIST> [epochs]");
  const ImageSet train = load_mnist(argv[1], Split::train), test = load_mnist(argv[1], Split::test);
  const int epochs = argc > 2 ? std::stoi(argv[2]) : 3;
  constexpr int64_t at_once = 64;
  const Network network;
  Adam optimizer(network.parameters());

  std::vector<int64_t> order(static_cast<size_t>(train.count));
  std::iota(order.begin(), order.end(), 0);
  double share = 0;
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    for (size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[Key{5}.fold(static_cast<uint64_t>(epoch)).below(i, static_cast<uint32_t>(i + 1))]);
    const int64_t batches = train.count / at_once;
    for (int64_t i = 0; i < batches; ++i) {
      const Batch batch = batch_of(train, std::span(order).subspan(static_cast<size_t>(i * at_once), at_once));
      Tape tape;
      const Tensor loss = cross_entropy(network(batch.x), batch.labels);
      optimizer.step(tape.backward(loss));
      if (i % 200 == 0)
        std::printf("epoch %d, %4.1f%%  loss %.4f\n", epoch,
                    100.0 * static_cast<double>(i) / static_cast<double>(batches), loss.item());
    }
    optimizer.set_lr(epoch + 1 < epochs ? 1e-3 : 2e-4);
    share = accuracy(network, test);
    std::printf("epoch %d: %.2f%% of the test images are classified correctly\n", epoch, 100 * share);
  }
  return share >= 0.985 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
