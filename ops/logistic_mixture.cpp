// The negative log-likelihood of a mixture of discretized logistics over the bytes 0..255, and a sampler of the same
// distribution.
#include <vector>

#include "engine/check.h"
#include "engine/tape.h"
#include "ops/checks.h"
#include "ops/kernels/losses.h"
#include "ops/losses.h"

namespace runnel {
namespace {

int64_t components(const char* op, const Tensor& params) {
  const Shape& shape = params.shape();
  check(shape.rank() > 0 && shape[-1] > 0 && shape[-1] % 3 == 0, op, ": params ", shape,
        " do not end in 3K numbers: K logits, K means, K log-scales");
  return shape[-1] / 3;
}

bool is_categorical(const Tensor& outputs) { return outputs.shape().rank() > 0 && outputs.shape()[-1] == 256; }

}  // namespace

Tensor logistic_mixture_nll(const Tensor& params, const Indices& bytes) {
  const int64_t k = components("logistic_mixture_nll", params), rows = bytes.size();
  check(params.shape().without_last() == bytes.shape(), "logistic_mixture_nll: bytes ", bytes.shape(),
        " do not match params ", params.shape());
  if (device_of("logistic_mixture_nll", params, bytes) == Device::cpu)
    for (const int32_t byte : bytes.to_vector())
      check(byte >= 0 && byte <= 255, "logistic_mixture_nll: ", byte, " is not a byte");

  Tensor nll(bytes.shape(), params.device());
  DISPATCH(params.device(), logistic_mixture_forward(nll.data(), params.data(), bytes.data(), rows, k));
  return record(
      "logistic_mixture_nll", {params}, nll, [params, bytes, rows, k](const Tensor& dnll) -> std::vector<Tensor> {
        Tensor dparams(params.shape(), params.device());
        DISPATCH(params.device(),
                 logistic_mixture_backward(dparams.data(), dnll.data(), params.data(), bytes.data(), rows, k));
        return {dparams};
      });
}

Indices logistic_mixture_sample(const Tensor& params, const Keys& keys, float temperature, const Indices& position) {
  refuse_gradient("logistic_mixture_sample", "params", params);
  const int64_t k = components("logistic_mixture_sample", params);
  const Device device = check_draw("logistic_mixture_sample", "params", params, keys, temperature, position);
  Indices bytes(params.shape().without_last(), device);
  DISPATCH(device, logistic_mixture_sample(bytes.data(), params.data(), keys.data(), position.data(), temperature,
                                           bytes.size(), k));
  return bytes;
}

Tensor byte_nll(const Tensor& outputs, const Indices& bytes) {
  return is_categorical(outputs) ? categorical_nll(outputs, bytes) : logistic_mixture_nll(outputs, bytes);
}

Indices byte_sample(const Tensor& outputs, const Keys& keys, float temperature, const Indices& position) {
  return is_categorical(outputs) ? categorical_sample(outputs, keys, temperature, position)
                                 : logistic_mixture_sample(outputs, keys, temperature, position);
}

}  // namespace runnel
