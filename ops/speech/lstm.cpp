// A layer of a long short-term memory, in one direction or both. The rule keeps the gates and c of each frame; the
// gradient of the recurrent weights is one product after all steps.
#include <algorithm>
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/kernels/linear.h"
#include "ops/kernels/speech.h"
#include "ops/speech/lstm.h"

namespace runnel {

LstmResult lstm(const std::vector<Tensor>& gates, const std::vector<Tensor>& w, const Indices& lengths,
                const LstmState& initial) {
  const char* const op = "lstm";
  check((gates.size() == 1 || gates.size() == 2) && w.size() == gates.size(), op, ": ", gates.size(), " gates and ",
        w.size(), " w are not those of one direction or of two");
  const Shape& shape = gates[0].shape();
  check(shape.rank() == 3 && shape[2] % 4 == 0, op, ": gates ", shape, " are not [B,T,4H]");
  const LstmSizes s{std::ssize(gates), shape[0], shape[1], shape[2] / 4};
  const Shape state_shape{s.directions, s.batch, s.width};
  const Device device = gates[0].device();
  LstmInputs in{};
  for (size_t d = 0; d < gates.size(); ++d) {
    device_of(op, gates[0], gates[d], w[d], lengths, initial.h, initial.c);
    check(gates[d].shape() == shape, op, ": gates ", gates[d].shape(), " do not match ", shape);
    check(w[d].shape() == Shape{4 * s.width, s.width}, op, ": w ", w[d].shape(), " does not match gates ", shape);
    in.gates[d] = gates[d].data();
    in.w[d] = w[d].data();
  }
  check(bool(initial.h) == bool(initial.c), op, ": h and c come together");
  check(!initial.h || (initial.h.shape() == state_shape && initial.c.shape() == state_shape), op, ": the state ",
        initial.h.shape(), ", ", initial.c.shape(), " is not ", state_shape);
  check(!lengths || lengths.shape() == Shape{s.batch}, op, ": lengths ", lengths.shape(),
        " are not one number for each of ", s.batch, " sequences");
  if (lengths && device == Device::cpu)
    for (int64_t b = 0; b < s.batch; ++b)
      check(lengths.data()[b] >= 0 && lengths.data()[b] <= s.frames, op, ": length ", lengths.data()[b],
            " of sequence ", b, " is not in [0, ", s.frames, "]");

  std::vector<Tensor> inputs = gates;
  inputs.insert(inputs.end(), w.begin(), w.end());
  inputs.push_back(initial.h);
  inputs.push_back(initial.c);
  const bool wants_grad =
      std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t && t.wants_grad(); });
  Tensor y(Shape{s.batch, s.frames, s.directions * s.width}, device), kept;
  if (wants_grad) kept = Tensor(Shape{s.directions, s.batch, s.frames, s.kept()}, device);
  LstmState last{Tensor(state_shape, device), Tensor(state_shape, device)};
  DISPATCH(device, lstm_forward(y.data(), last.h.data(), last.c.data(), kept.data(), in, initial.h.data(),
                                initial.c.data(), lengths.data(), s));

  const auto rule = [=](const std::vector<Tensor>& d) -> std::vector<Tensor> {
    const Tensor dy = d[0] ? d[0] : Tensor::full(y.shape(), 0, device);
    std::vector<Tensor> gradients;
    LstmGradients to{};
    LstmInputs weights{};
    for (size_t i = 0; i < w.size(); ++i) {
      gradients.push_back(Tensor(shape, device));
      to.gates[i] = gradients[i].data();
      weights.w[i] = w[i].data();
    }
    Tensor dh0, dc0;
    if (initial.h) dh0 = Tensor(state_shape, device), dc0 = Tensor(state_shape, device);
    DISPATCH(device, lstm_backward(to, dh0.data(), dc0.data(), dy.data(), d[1].data(), d[2].data(), kept.data(),
                                   weights, initial.c.data(), lengths.data(), s));
    Tensor previous(Shape{s.batch, s.frames, s.width}, device);
    for (size_t i = 0; i < w.size(); ++i) {
      Tensor dw(w[i].shape(), device);
      DISPATCH(device,
               lstm_previous(previous.data(), y.data(), initial.h.data(), lengths.data(), static_cast<int64_t>(i), s));
      DISPATCH(device,
               linear_backward(nullptr, dw.data(), nullptr, gradients[i].data(), previous.data(), nullptr, nullptr,
                               {1, s.batch * s.frames, 4 * s.width, s.width}, Activation::none, {}, false));
      gradients.push_back(dw);
    }
    gradients.push_back(dh0);
    gradients.push_back(dc0);
    return gradients;
  };
  const std::vector<Tensor> results = record(op, inputs, std::vector{y, last.h, last.c}, rule);
  return {results[0], {results[1], results[2]}};
}

}  // namespace runnel
