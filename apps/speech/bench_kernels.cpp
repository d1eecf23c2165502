// The kernels of ops/speech/, for `runnel bench kernels`.
#include "apps/bench/kernels.h"
#include "apps/speech/speech.h"
#include "ops/kernels/speech.h"

namespace runnel {

std::vector<BenchKernel> speech_kernels(Device device) {
  std::vector<BenchKernel> all;
  KernelInputs in(device);
  constexpr int64_t length = in.length, d = in.d;
  const int64_t batch = in.batch, rows = in.rows;
  const double N = static_cast<double>(in.n), R = static_cast<double>(rows), D = d;
  Tensor x0 = in.x0, x1 = in.x1, small1 = in.small;
  const Tensor a = in.a, g = in.g, bias = in.bias;
  constexpr int64_t labels = 16;
  const CtcSizes aligned{batch, length, d, labels, d - 1, false};
  const double states = R * static_cast<double>(aligned.states());
  const Indices spelled = in.numbers_below(batch * labels, d - 1);
  Tensor alpha(Shape{rows, aligned.states()}, device), normaliser(Shape{rows}, device);
  DISPATCH(device, ctc_loss_forward(small1.data(), alpha.data(), normaliser.data(), a.data(), nullptr, spelled.data(),
                                    nullptr, aligned));
  CASE(N + states, 2 * N + 8 * states, ctc_loss_forward, small1.data(), alpha.data(), normaliser.data(), a.data(),
       nullptr, spelled.data(), nullptr, aligned);
  CASE(2 * N + states, 3 * N + 12 * states, ctc_loss_backward, x0.data(), bias.data(), alpha.data(), normaliser.data(),
       a.data(), nullptr, spelled.data(), nullptr, aligned);
  const LstmSizes recurrent{1, batch, length, d / 4};
  const Tensor w_recurrent = in.floats({d, d / 4});
  Tensor kept(Shape{rows, recurrent.kept()}, device), last_h(Shape{batch, d / 4}, device);
  Tensor last_c(last_h.shape(), device);
  CASE(2.5 * N, N * D / 2, lstm_forward, x0.data(), last_h.data(), last_c.data(), kept.data(),
       (LstmInputs{{a.data(), nullptr}, {w_recurrent.data(), nullptr}}), nullptr, nullptr, nullptr, recurrent);
  CASE(2.5 * N, N * D / 2, lstm_backward, (LstmGradients{{x1.data(), nullptr}}), nullptr, nullptr, g.data(), nullptr,
       nullptr, kept.data(), (LstmInputs{{a.data(), nullptr}, {w_recurrent.data(), nullptr}}), nullptr, nullptr,
       recurrent);
  CASE(N / 2, 0.0, lstm_previous, x0.data(), a.data(), nullptr, nullptr, 0, recurrent);
  return all;
}

}  // namespace runnel
