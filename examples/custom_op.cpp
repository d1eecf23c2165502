// An op of your own with its gradient rule: the squared hinge loss of a two-class classifier, for scores x and labels
// t = +1 or -1,
//
//   loss = mean_i max(0, 1 - t_i x_i)^2        dloss/dx_i = -2/n t_i max(0, 1 - t_i x_i)
//
// An op computes its result and ends in record(), which puts its rule on the tape: given dy, the gradient of the
// result, the rule returns a gradient for each input. Here the op is checked by differences and then trains a small
// network.
#include <runnel/engine/check.h>
#include <runnel/engine/tape.h>
#include <runnel/models/optimizer.h>
#include <runnel/ops/check_gradients.h>
#include <runnel/ops/ops.h>
#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace runnel;

Tensor squared_hinge(const Tensor& x, const Tensor& t) {  // [n] [n] -> []
  check(x.shape() == t.shape(), "squared_hinge: t ", t.shape(), " does not match x ", x.shape());
  check(device_of("squared_hinge", x, t) == Device::cpu, "squared_hinge: only on the CPU");
  const auto gap = [x, t](int64_t i) { return std::max(0.0f, 1 - t.data()[i] * x.data()[i]); };
  const auto n = static_cast<float>(x.size());
  float loss = 0;
  for (int64_t i = 0; i < x.size(); ++i) loss += gap(i) * gap(i) / n;
  // What the rule captures is what backward keeps in memory: here x and t, which tensors share and do not copy.
  refuse_gradient("squared_hinge", "t", t);
  return record("squared_hinge", {x}, Tensor(Shape{}, {loss}), [=](const Tensor& dy) -> std::vector<Tensor> {
    Tensor dx(x.shape());
    for (int64_t i = 0; i < x.size(); ++i) dx.data()[i] = dy.item() * -2 / n * t.data()[i] * gap(i);
    return {dx};
  });
}

int main() {
  const Tensor some(Shape{4}, {0.3f, -2, 1.5f, 0.4f}), signs(Shape{4}, {1, 1, 1, -1});
  check_gradients([&](const std::vector<Tensor>& in) { return squared_hinge(in[0], signs); }, {some});  // throws if not
  std::printf("gradient: agrees with finite differences\n");

  // Points of a square; those within a circle are +1. A network with one hidden layer learns to tell.
  constexpr int64_t points = 400, hidden = 32;
  const auto uniform = [](Shape shape, Key key, float range) {
    Tensor x(shape);
    for (int64_t i = 0; i < x.size(); ++i) x.data()[i] = range * (2 * key.uniform(static_cast<uint64_t>(i)) - 1);
    return x;
  };
  const Tensor x = uniform(Shape{points, 2}, Key{1}, 1);
  Tensor t(Shape{points});
  for (int64_t i = 0; i < points; ++i) t.data()[i] = std::hypot(x.data()[2 * i], x.data()[2 * i + 1]) < 0.75f ? 1 : -1;

  const Tensor w1 = uniform(Shape{hidden, 2}, Key{2}, 1).set_wants_grad(),
               b1 = uniform(Shape{hidden}, Key{3}, 1).set_wants_grad();
  const Tensor w2 = uniform(Shape{1, hidden}, Key{4}, 0.2f).set_wants_grad(),
               b2 = Tensor::full(Shape{1}, 0).set_wants_grad();
  const auto model = [&] { return reshape(linear(linear(x, w1, b1, Activation::relu), w2, b2), Shape{points}); };
  Adam optimizer({{"w1", w1}, {"b1", b1}, {"w2", w2}, {"b2", b2}}, {.lr = 0.03});
  for (int step = 0; step < 300; ++step) {
    Tape tape;
    const Tensor loss = squared_hinge(model(), t);
    optimizer.step(tape.backward(loss));
    if (step % 100 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item());
  }
  const Tensor scores = model();
  int right = 0;
  for (int64_t i = 0; i < points; ++i) right += scores.data()[i] * t.data()[i] > 0;
  std::printf("%d of %d points classified correctly\n", right, static_cast<int>(points));
  return right >= 0.97 * points ? 0 : 1;
}
