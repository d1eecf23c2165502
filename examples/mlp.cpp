// A two-layer perceptron learns to tell two spirals apart, and draws what it has learned:
//
//   example_mlp [spirals.png]
#include <runnel/engine/random.h>
#include <runnel/engine/tape.h>
#include <runnel/models/optimizer.h>
#include <runnel/ops/ops.h>
#include <cmath>
#include <cstdio>

#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>

using namespace runnel;

Tensor weights(Shape shape, Key key) {  // uniform in +-sqrt(3 / inputs)
  std::vector<float> values(static_cast<size_t>(shape.size()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sqrt(3.0f / static_cast<float>(shape[0])) * (2 * key.uniform(i) - 1);
  return Tensor(shape, values).set_wants_grad();
}

int main(int argc, char** argv) {
  constexpr int n = 400, width = 64, side = 200;
  std::vector<float> points, labels;  // +1 and -1, each on a spiral of its own, two turns
  for (int i = 0; i < n; ++i) {
    const float sign = i % 2 ? 1.0f : -1.0f, turn = 4 * 3.14159f * static_cast<float>(i) / n, r = sign * turn / 13;
    points.insert(points.end(), {r * std::cos(turn), r * std::sin(turn)});
    labels.push_back(sign);
  }
  const Tensor x(Shape{n, 2}, points), t(Shape{n, 1}, labels);

  const Tensor w1 = weights({2, width}, Key{1}), w2 = weights({width, width}, Key{2}), w3 = weights({width, 1}, Key{3});
  const Tensor b1 = weights({width}, Key{4}), b2 = weights({width}, Key{5}), b3 = Tensor::full({1}, 0).set_wants_grad();
  const auto model = [&](const Tensor& in) {  // [n,2] -> [n,1]
    const Tensor h = tanh(matmul(4 * in, w1) + b1);
    return matmul(tanh(matmul(h, w2) + b2), w3) + b3;
  };
  Adam optimizer({{"w1", w1}, {"b1", b1}, {"w2", w2}, {"b2", b2}, {"w3", w3}, {"b3", b3}}, {.lr = 5e-3});
  for (int step = 0; step <= 1000; ++step) {
    Tape tape;
    const Tensor loss = mean(softplus(-t * model(x)));  // -log of the probability of the right label
    optimizer.step(tape.backward(loss));
    if (step % 200 == 0) std::printf("step %4d  loss %.4f\n", step, loss.item());
  }
  const float wrong = sum(where(relu(-t * model(x)), Tensor::full({}, 1), Tensor::full({}, 0))).item();
  std::printf("%d of %d points on the wrong side\n", static_cast<int>(wrong), n);

  std::vector<float> grid;
  for (int i = 0; i < side * side; ++i)
    grid.insert(grid.end(),
                {2.0f * static_cast<float>(i % side) / side - 1, 1 - 2.0f * static_cast<float>(i / side) / side});
  std::vector<unsigned char> pixels;
  for (const float p : sigmoid(model(Tensor(Shape{side * side, 2}, grid))).to_vector())
    pixels.push_back(static_cast<unsigned char>(64 + 127 * p));
  for (int i = 0; i < n; ++i) {
    const auto at = [](float v) { return static_cast<int>((v + 1) / 2 * side); };
    pixels[static_cast<size_t>(at(-points[2 * i + 1]) * side + at(points[2 * i]))] = labels[i] > 0 ? 255 : 0;
  }
  return argc > 1 && !stbi_write_png(argv[1], side, side, 1, pixels.data(), side) ? 1 : wrong > 4;
}
