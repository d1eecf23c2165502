// A mixture of K discretized logistics over the bytes 0..255 (PixelCNN++, Salimans et al. 2017), its gradient, and a
// sampler of the same distribution.
//
// Byte n owns the interval [e_n, e_(n+1)] with e_n = (2n - 256) / 255, so that its middle is 2n / 255 - 1; bytes 0 and
// 255 own the whole tails. A logistic variable of mean mu and scale s = exp(max(log_scale, -7)) falls into it with
//   p = sigmoid(b) - sigmoid(a),  a = (e_n - mu) / s,  b = (e_(n+1) - mu) / s    (a = -inf for 0, b = inf for 255).
// Neighbours share an edge and hence the same number, so the 256 probabilities telescope to 1. In float the difference
// loses all its digits in a tail; the same thing as a product does not. With d = b - a = 2 / (255 s), known without a
// subtraction,
//   log p = log sigmoid(-a) + log sigmoid(b) + log(1 - exp(-d))         where d underflows, log d = log(2/255) - log s
//   d(log p)/da = -(sigmoid(a) + 1 / expm1(d)),  d(log p)/db = sigmoid(-b) + 1 / expm1(d)
// and where these meet the 1 / expm1 either cancels (mu) or is multiplied by d (log_scale), so it needs no care:
//   -d(log p)/dmu        = (sigmoid(-b) - sigmoid(a)) / s
//   -d(log p)/dlog_scale = b sigmoid(-b) - a sigmoid(a) + d / expm1(d)
// Below p = 1e-5 the authors take density times width instead, which is too small by log(sinh(d/2) / (d/2)) nats: 0.001
// at log_scale -3, 0.06 at -5, 2.1 at -7. Elsewhere the two agree.
//
// The mixture: nll = logsumexp_k(l_k) - logsumexp_k(l_k + log p_k), and the gradient of a component's parameters is
// that of -log p_k times its share of the mixture's probability.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/check.h"
#include "ops/cpu/draw.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace runnel {
namespace {

constexpr float min_log_scale = -7;
constexpr float log_unit_width = -4.84811636f;  // log(2 / 255), for a scale of 1

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
float log_sigmoid(float x) { return std::min(x, 0.0f) - std::log1p(std::exp(-std::abs(x))); }

// The interval of a byte as one component sees it.
struct Bin {
  float log_scale, inverse_scale, a, b, width;
  bool first, last;

  Bin(int32_t byte, float mean, float given_log_scale)
      : log_scale(std::max(given_log_scale, min_log_scale)),
        inverse_scale(std::exp(-log_scale)),
        a((static_cast<float>(2 * byte - 256) / 255 - mean) * inverse_scale),
        b((static_cast<float>(2 * byte - 254) / 255 - mean) * inverse_scale),
        width(inverse_scale * 2 / 255),
        first(byte == 0),
        last(byte == 255) {}

  // A scale so large that 1 - exp(-width) is width: from a log_scale of 9 on. Both may underflow.
  bool is_wide() const { return width < 1e-6f; }

  float log_probability() const {
    if (first) return log_sigmoid(b);
    if (last) return log_sigmoid(-a);
    return log_sigmoid(-a) + log_sigmoid(b) + (is_wide() ? log_unit_width - log_scale : std::log(-std::expm1(-width)));
  }
  float dmean() const {  // of -log p
    return inverse_scale * ((last ? 0 : sigmoid(-b)) - (first ? 0 : sigmoid(a)));
  }
  float dlog_scale() const {  // of -log p, where the scale is not at its minimum
    if (first) return b * sigmoid(-b);
    if (last) return -a * sigmoid(a);
    return b * sigmoid(-b) - a * sigmoid(a) + (is_wide() ? 1 : width / std::expm1(width));
  }
};

// log sum exp of numbers that come one by one.
struct LogSumExp {
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0;

  void add(float x) {
    if (x > largest) {
      sum = sum * std::exp(largest - x) + 1;
      largest = x;
    } else {
      sum += std::exp(x - largest);
    }
  }
  float value() const { return largest + std::log(sum); }
};

}  // namespace

void cpu::logistic_mixture_forward(float* nll, const float* params, const int32_t* bytes, int64_t rows, int64_t k) {
#pragma omp parallel for schedule(static) if (rows * k > 512)
  for (int64_t r = 0; r < rows; ++r) {
    const float *logit = params + r * 3 * k, *mean = logit + k, *log_scale = mean + k;
    LogSumExp prior, joint;
    for (int64_t i = 0; i < k; ++i) {
      prior.add(logit[i]);
      joint.add(logit[i] + Bin(bytes[r], mean[i], log_scale[i]).log_probability());
    }
    nll[r] = prior.value() - joint.value();
  }
}

void cpu::logistic_mixture_backward(float* dparams, const float* dnll, const float* params, const int32_t* bytes,
                                    int64_t rows, int64_t k) {
#pragma omp parallel for schedule(static) if (rows * k > 512)
  for (int64_t r = 0; r < rows; ++r) {
    const float *logit = params + r * 3 * k, *mean = logit + k, *log_scale = mean + k;
    float *dlogit = dparams + r * 3 * k, *dmean = dlogit + k, *dlog_scale = dmean + k;
    LogSumExp prior, joint;
    for (int64_t i = 0; i < k; ++i) {
      dlogit[i] = logit[i] + Bin(bytes[r], mean[i], log_scale[i]).log_probability();  // until its turn below
      prior.add(logit[i]);
      joint.add(dlogit[i]);
    }
    const float prior_total = prior.value(), joint_total = joint.value();
    for (int64_t i = 0; i < k; ++i) {
      const Bin bin(bytes[r], mean[i], log_scale[i]);
      const float share = std::exp(dlogit[i] - joint_total);
      dlogit[i] = dnll[r] * (std::exp(logit[i] - prior_total) - share);
      dmean[i] = dnll[r] * share * bin.dmean();
      dlog_scale[i] = log_scale[i] < min_log_scale ? 0 : dnll[r] * share * bin.dlog_scale();
    }
  }
}

// The component from the softmax of the logits, the value by inverting the logistic's sigmoid. The
// nearest byte, clamped, is the one whose interval the value is in: this is the distribution above.
void cpu::logistic_mixture_sample(int32_t* bytes, const float* params, const Key* keys, const int32_t* position,
                                  float temperature, int64_t rows, int64_t k) {
#pragma omp parallel for schedule(static) if (rows * k > 512)
  for (int64_t r = 0; r < rows; ++r) {
    const float *logit = params + r * 3 * k, *mean = logit + k, *log_scale = mean + k;
    const Key key = position ? keys[r].fold(static_cast<uint64_t>(position[0])) : keys[r];
    const int64_t chosen = draw_category(logit, k, temperature, key.uniform(0));
    const float u = key.uniform(1);
    const float scale = temperature * std::exp(std::max(log_scale[chosen], min_log_scale));
    const float x = mean[chosen] + scale * std::log(u / (1 - u));
    bytes[r] = static_cast<int32_t>(std::min(std::max(0.0f, std::round((x + 1) * 127.5f)), 255.0f));  // NaN: 0
  }
}

namespace {

int64_t components(const char* op, const Tensor& params) {
  const Shape& shape = params.shape();
  check(shape.rank() > 0 && shape[-1] > 0 && shape[-1] % 3 == 0, op, ": params ", shape,
        " do not end in 3K numbers: K logits, K means, K log-scales");
  return shape[-1] / 3;
}

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
  const int64_t k = components("logistic_mixture_sample", params);
  const Device device = check_draw("logistic_mixture_sample", "params", params, keys, temperature, position);
  Indices bytes(params.shape().without_last(), device);
  DISPATCH(device, logistic_mixture_sample(bytes.data(), params.data(), keys.data(), position.data(), temperature,
                                           bytes.size(), k));
  return bytes;
}

}  // namespace runnel
