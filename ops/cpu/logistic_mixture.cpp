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
#include "ops/cpu/draw.h"
#include "ops/kernels/losses.h"

namespace runnel {
namespace {

constexpr float min_log_scale = -7;
constexpr float log_unit_width = -4.84811636f;  // log(2 / 255), for a scale of 1
constexpr int64_t parallel_from_components = 512;

RUNNEL_INLINE inline Lanes log_sigmoid(Lanes x) { return min(x, Lanes{}) - log1p(exp(-abs(x))); }

// The interval of a byte as components see it, one to a lane.
struct Bins {
  Lanes log_scale, inverse_scale, a, b, width;
  bool first, last;

  Bins(int32_t byte, Lanes mean, Lanes given_log_scale)
      : log_scale(max(given_log_scale, splat(min_log_scale))),
        inverse_scale(exp(-log_scale)),
        a((static_cast<float>(2 * byte - 256) / 255 - mean) * inverse_scale),
        b((static_cast<float>(2 * byte - 254) / 255 - mean) * inverse_scale),
        width(inverse_scale * (2.0f / 255)),
        first(byte == 0),
        last(byte == 255) {}

  // A scale so large that 1 - exp(-width) is width: from a log_scale of 9 on. Both may underflow.
  IntLanes is_wide() const { return width < 1e-6f; }

  Lanes log_probability() const {
    if (first) return log_sigmoid(b);
    if (last) return log_sigmoid(-a);
    return log_sigmoid(-a) + log_sigmoid(b) + (is_wide() ? log_unit_width - log_scale : log(-expm1(-width)));
  }
  Lanes dmean() const {  // of -log p
    return inverse_scale * ((last ? Lanes{} : sigmoid(-b)) - (first ? Lanes{} : sigmoid(a)));
  }
  Lanes dlog_scale() const {  // of -log p, where the scale is not at its minimum
    if (first) return b * sigmoid(-b);
    if (last) return -a * sigmoid(a);
    return b * sigmoid(-b) - a * sigmoid(a) + (is_wide() ? splat(1) : width / expm1(width));
  }
};

// log sum exp of numbers that come vector by vector.
struct LogSumExp {
  Lanes highest = splat(-std::numeric_limits<float>::max()), sums{};

  void add(Lanes x) {
    const Lanes before = highest;
    highest = max(highest, x);
    sums = sums * exp(before - highest) + exp(x - highest);
  }
  float value() const {
    const float of_all = lane_max(highest);
    return of_all + log(splat(lane_sum(sums * exp(highest - of_all))))[0];
  }
};

// The parameters of a row, the same number of each.
struct Components {
  const float *logits, *means, *log_scales;
  int64_t k;
  Components(const float* params, int64_t r, int64_t count)
      : logits(params + r * 3 * count), means(logits + count), log_scales(means + count), k(count) {}

  Lanes logit(int64_t i) const { return load(logits + i, k - i, splat(minus_infinity)); }  // past the last: no weight
  Bins bins(int32_t byte, int64_t i) const { return Bins(byte, load(means + i, k - i), load(log_scales + i, k - i)); }
};

}  // namespace

void cpu::logistic_mixture_forward(float* nll, const float* params, const int32_t* bytes, int64_t rows, int64_t k) {
  parallel_for(rows, rows * k > parallel_from_components, [=](int64_t r) {
    const Components components(params, r, k);
    LogSumExp prior, joint;
    for (int64_t i = 0; i < k; i += lanes) {
      prior.add(components.logit(i));
      joint.add(components.logit(i) + components.bins(bytes[r], i).log_probability());
    }
    nll[r] = prior.value() - joint.value();
  });
}

void cpu::logistic_mixture_backward(float* dparams, const float* dnll, const float* params, const int32_t* bytes,
                                    int64_t rows, int64_t k) {
  parallel_for(rows, rows * k > parallel_from_components, [=](int64_t r) {
    const Components components(params, r, k);
    float *dlogit = dparams + r * 3 * k, *dmean = dlogit + k, *dlog_scale = dmean + k;
    LogSumExp prior, joint;
    for (int64_t i = 0; i < k; i += lanes) {
      const Lanes x = components.logit(i) + components.bins(bytes[r], i).log_probability();
      prior.add(components.logit(i));
      joint.add(x);
      store(dlogit + i, x, k - i);  // until its turn below
    }
    const float prior_total = prior.value(), joint_total = joint.value();
    for (int64_t i = 0; i < k; i += lanes) {
      const Bins bins = components.bins(bytes[r], i);
      const Lanes share = exp(load(dlogit + i, k - i) - joint_total);
      const IntLanes at_minimum = load(components.log_scales + i, k - i) < min_log_scale;
      store(dlogit + i, dnll[r] * (exp(components.logit(i) - prior_total) - share), k - i);
      store(dmean + i, dnll[r] * share * bins.dmean(), k - i);
      store(dlog_scale + i, at_minimum ? Lanes{} : dnll[r] * share * bins.dlog_scale(), k - i);
    }
  });
}

// The component from the softmax of the logits, the value by inverting the logistic's sigmoid. The
// nearest byte, clamped, is the one whose interval the value is in: this is the distribution above.
void cpu::logistic_mixture_sample(int32_t* bytes, const float* params, const Key* keys, const int32_t* position,
                                  float temperature, int64_t rows, int64_t k) {
  parallel_for(rows, rows * k > parallel_from_components, [=](int64_t r) {
    const Components components(params, r, k);
    const Key key = position ? keys[r].fold(static_cast<uint64_t>(position[0])) : keys[r];
    const int64_t chosen = draw_category(components.logits, k, temperature, key.uniform(0));
    const float u = key.uniform(1), log_scale = components.log_scales[chosen];
    const float scale = temperature * exp(splat(log_scale < min_log_scale ? min_log_scale : log_scale))[0];
    const float x = (components.means[chosen] + scale * log(splat(u / (1 - u)))[0] + 1) * 127.5f;
    bytes[r] = static_cast<int32_t>((x > 0 ? x < 255 ? x : 255 : 0) + 0.5f);  // NaN: 0
  });
}

}  // namespace runnel
