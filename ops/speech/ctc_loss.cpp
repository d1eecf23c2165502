// Connectionist temporal classification. If the logits want a gradient, the forward pass keeps the logarithms that the
// backward pass needs of each frame.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/speech.h"
#include "ops/speech/ctc_loss.h"

namespace runnel {

Tensor ctc_loss(const Tensor& logits, const Indices& lengths, const Indices& targets, const Indices& target_lengths,
                const CtcOptions& options) {
  const char* const op = "ctc_loss";
  const Device device = device_of(op, logits, lengths, targets, target_lengths);
  const Shape& shape = logits.shape();
  check(shape.rank() == 3 && shape[2] > 0, op, ": logits ", shape, " are not [B,T,V] with symbols");
  check(targets.shape().rank() == 2 && targets.shape()[0] == shape[0], op, ": targets ", targets.shape(), " are not [",
        shape[0], ",U] as logits ", shape, " ask for");
  const CtcSizes s{shape[0], shape[1], shape[2], targets.shape()[1], options.blank, options.zero_infinity};
  check(s.blank >= 0 && s.blank < s.symbols, op, ": blank ", s.blank, " is not in [0, ", s.symbols, ")");
  const auto check_lengths = [&](const char* name, const Indices& all, int64_t most) {
    check(!all || all.shape() == Shape{s.batch}, op, ": ", name, " ", all.shape(), " are not one number for each of ",
          s.batch, " sequences");
    if (!all || device != Device::cpu) return;
    for (int64_t b = 0; b < s.batch; ++b)
      check(all.data()[b] >= 0 && all.data()[b] <= most, op, ": ", name, " ", all.data()[b], " of sequence ", b,
            " is not in [0, ", most, "]");
  };
  check_lengths("lengths", lengths, s.frames);
  check_lengths("target_lengths", target_lengths, s.labels);
  if (device == Device::cpu)
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t u = 0; u < (target_lengths ? target_lengths.data()[b] : s.labels); ++u) {
        const int32_t label = targets.data()[b * s.labels + u];
        check(label >= 0 && label < s.symbols && label != s.blank, op, ": label ", label, " of sequence ", b,
              " is the blank or not in [0, ", s.symbols, ")");
      }

  Tensor loss(Shape{s.batch}, device), alpha, normaliser;
  if (logits.wants_grad()) {
    alpha = Tensor(Shape{s.batch, s.frames, s.states()}, device);
    normaliser = Tensor(Shape{s.batch, s.frames}, device);
  }
  DISPATCH(device, ctc_loss_forward(loss.data(), alpha.data(), normaliser.data(), logits.data(), lengths.data(),
                                    targets.data(), target_lengths.data(), s));
  return record(op, {logits}, loss, [=](const Tensor& dloss) -> std::vector<Tensor> {
    Tensor dlogits(logits.shape(), device);
    DISPATCH(device, ctc_loss_backward(dlogits.data(), dloss.data(), alpha.data(), normaliser.data(), logits.data(),
                                       lengths.data(), targets.data(), target_lengths.data(), s));
    return {dlogits};
  });
}

}  // namespace runnel
