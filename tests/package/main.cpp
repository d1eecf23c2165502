#include <runnel/runnel.h>

#include <cstdio>

int main() {
  using namespace runnel;
  Tensor weight(Shape{2, 1}, {3, 4});
  weight.set_wants_grad();
  Tape tape;
  const Tensor loss = sum(matmul(Tensor(Shape{1, 2}, {5, 6}), weight));
  const Gradients gradients = tape.backward(loss);
  std::printf("%s: %g, %g\n", build_info.version, loss.item(), gradients.of(weight).data()[1]);
}
