// A mixture of K discretized logistics over the bytes, its gradient, and a sampler. The formulas, and why in this
// form, is derived in ops/cpu/logistic_mixture.cpp; with the a, b and width of a component's bin
//   log p = log sigmoid(-a) + log sigmoid(b) + log(1 - exp(-width))
//   nll   = logsumexp_k(l_k) - logsumexp_k(l_k + log p_k)
// The arithmetic is that of the CPU step by step, so that both draw the same byte from the same key: a difference needs
// a value that lies within a rounding of the edge between two bytes.
//
// A row is 3K numbers and thousands of instructions, so a thread does one alone. Blocks are small: a batch has some
// thousand rows, and they should reach every multiprocessor.
#include "cuda/draw.h"
#include "cuda/launch.h"
#include "ops/kernels/losses.h"

namespace runnel::cuda {
namespace {

constexpr int block = 64;
constexpr float min_log_scale = -7;
constexpr float log_unit_width = -4.84811636f;  // log(2 / 255), for a scale of 1

// Unlike fmaxf it keeps NaN.
__device__ float limited(float log_scale) { return log_scale < min_log_scale ? min_log_scale : log_scale; }
__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }
__device__ float log_sigmoid(float x) { return fminf(x, 0) - log1pf(expf(-fabsf(x))); }

// The interval of a byte as one component sees it.
struct Bin {
  float log_scale, inverse_scale, a, b, width;
  bool first, last;

  __device__ Bin(int32_t byte, float mean, float given_log_scale)
      : log_scale(limited(given_log_scale)),
        inverse_scale(expf(-log_scale)),
        a((static_cast<float>(2 * byte - 256) / 255 - mean) * inverse_scale),
        b((static_cast<float>(2 * byte - 254) / 255 - mean) * inverse_scale),
        width(inverse_scale * 2 / 255),
        first(byte == 0),
        last(byte == 255) {}

  // A scale so large that 1 - exp(-width) is width: from a log_scale of 9 on. Both may underflow.
  __device__ bool is_wide() const { return width < 1e-6f; }

  __device__ float log_probability() const {
    if (first) return log_sigmoid(b);
    if (last) return log_sigmoid(-a);
    return log_sigmoid(-a) + log_sigmoid(b) + (is_wide() ? log_unit_width - log_scale : logf(-expm1f(-width)));
  }
  __device__ float dmean() const {  // of -log p
    return inverse_scale * ((last ? 0 : sigmoid(-b)) - (first ? 0 : sigmoid(a)));
  }
  __device__ float dlog_scale() const {  // of -log p, where the scale is not at its minimum
    if (first) return b * sigmoid(-b);
    if (last) return -a * sigmoid(a);
    return b * sigmoid(-b) - a * sigmoid(a) + (is_wide() ? 1 : width / expm1f(width));
  }
};

// log sum exp of numbers that come one by one.
struct LogSumExp {
  float largest = -INFINITY;
  float sum = 0;

  __device__ void add(float x) {
    if (x > largest) {
      sum = sum * expf(largest - x) + 1;
      largest = x;
    } else {
      sum += expf(x - largest);
    }
  }
  __device__ float value() const { return largest + logf(sum); }
};

// Launch: a thread per row. Owns: nll[r]. Shared: none.
__global__ void logistic_mixture_forward_kernel(float* nll, const float* params, const int32_t* bytes, int64_t rows,
                                                int64_t k) {
  for (int64_t r = first_element(); r < rows; r += element_step()) {
    const float *const logit = params + r * 3 * k, *const mean = logit + k, *const log_scale = mean + k;
    LogSumExp prior, joint;
    for (int64_t i = 0; i < k; ++i) {
      prior.add(logit[i]);
      joint.add(logit[i] + Bin(bytes[r], mean[i], log_scale[i]).log_probability());
    }
    nll[r] = prior.value() - joint.value();
  }
}

// Launch: a thread per row. Owns: dparams[r,:]. Shared: none.
__global__ void logistic_mixture_backward_kernel(float* dparams, const float* dnll, const float* params,
                                                 const int32_t* bytes, int64_t rows, int64_t k) {
  for (int64_t r = first_element(); r < rows; r += element_step()) {
    const float *const logit = params + r * 3 * k, *const mean = logit + k, *const log_scale = mean + k;
    float *const dlogit = dparams + r * 3 * k, *const dmean = dlogit + k, *const dlog_scale = dmean + k;
    LogSumExp prior, joint;
    for (int64_t i = 0; i < k; ++i) {
      dlogit[i] = logit[i] + Bin(bytes[r], mean[i], log_scale[i]).log_probability();  // until its turn below
      prior.add(logit[i]);
      joint.add(dlogit[i]);
    }
    const float prior_total = prior.value(), joint_total = joint.value();
    for (int64_t i = 0; i < k; ++i) {
      const Bin bin(bytes[r], mean[i], log_scale[i]);
      const float share = expf(dlogit[i] - joint_total);
      dlogit[i] = dnll[r] * (expf(logit[i] - prior_total) - share);
      dmean[i] = dnll[r] * share * bin.dmean();
      dlog_scale[i] = log_scale[i] < min_log_scale ? 0 : dnll[r] * share * bin.dlog_scale();
    }
  }
}

// Launch: a thread per row. Owns: bytes[r]. Shared: none.
__global__ void logistic_mixture_sample_kernel(int32_t* bytes, const float* params, const Key* keys,
                                               const int32_t* position, float temperature, int64_t rows, int64_t k) {
  for (int64_t r = first_element(); r < rows; r += element_step()) {
    const float *const logit = params + r * 3 * k, *const mean = logit + k, *const log_scale = mean + k;
    const Key key = position ? keys[r].fold(static_cast<uint64_t>(position[0])) : keys[r];
    const int64_t chosen = draw_category(logit, k, temperature, key.uniform(0));
    const float u = key.uniform(1);
    const float scale = temperature * expf(limited(log_scale[chosen]));
    const float x = mean[chosen] + scale * logf(u / (1 - u));
    bytes[r] = static_cast<int32_t>(fminf(fmaxf(0, roundf((x + 1) * 127.5f)), 255));  // NaN: 0
  }
}

}  // namespace

void logistic_mixture_forward(float* nll, const float* params, const int32_t* bytes, int64_t rows, int64_t k) {
  launch("logistic_mixture_forward", logistic_mixture_forward_kernel, over(rows, block), nll, params, bytes, rows, k);
}

void logistic_mixture_backward(float* dparams, const float* dnll, const float* params, const int32_t* bytes,
                               int64_t rows, int64_t k) {
  launch("logistic_mixture_backward", logistic_mixture_backward_kernel, over(rows, block), dparams, dnll, params, bytes,
         rows, k);
}

void logistic_mixture_sample(int32_t* bytes, const float* params, const Key* keys, const int32_t* position,
                             float temperature, int64_t rows, int64_t k) {
  launch("logistic_mixture_sample", logistic_mixture_sample_kernel, over(rows, block), bytes, params, keys, position,
         temperature, rows, k);
}

}  // namespace runnel::cuda
