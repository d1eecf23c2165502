// Short causal convolutions: with w_j = weight[.,j], channel by channel,
//
//   z_t = sum over j < K of w_j x_{t-j},   y_t = f(z_t),   f(z) = z or silu(z) = z s(z), s the logistic function
//   dz_t = dy_t f'(z_t),   f'(z) = 1 or s(z) (1 + z (1 - s(z)))
//   dx_t = sum over j of w_j dz_{t+j},   dw_j = sum over t of dz_t x_{t-j}
//
// A row has all channels of a position, and vectors run along it. The backward pass goes from right to left and keeps
// dz of the last K rows only. A sequence is cut into segments, which compute dz of the K - 1 rows to their right again;
// dw is summed over segments and then over these in their order: the same bytes with any number of threads.
#include "ops/kernels/causal_convolution.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/scratch.h"

namespace runnel {
namespace {

// use(c, count, sum over j of weight_j row_j) for the vectors of rows that are D wide; weights [K,D].
template <class Use>
RUNNEL_INLINE inline void weighted_rows(const float* weights, const float* const (&row)[most_convolution_taps],
                                        int64_t taps, int64_t width, Use use) {
  const auto vector = [&](int64_t c, int64_t count) RUNNEL_INLINE {
    Lanes sum{};
    for (int64_t j = 0; j < taps; ++j) sum += load(weights + j * width + c, count) * load(row[j] + c, count);
    use(c, count, sum);
  };
  int64_t c = 0;
  for (; c + lanes <= width; c += lanes) vector(c, lanes);
  if (c < width) vector(c, width - c);
}

// The weights as [K,D], and rows of x by their position, from -(K-1) on.
class Taps {
 public:
  Taps(const float* x, const float* weight, const float* before, const ConvolutionSizes& s)
      : x_(x), before_(before), s_(s), memory_((s.taps + 1) * s.width) {
    float* const own = memory_.data();
    for (int64_t j = 0; j < s.taps; ++j)
      for (int64_t c = 0; c < s.width; ++c) own[j * s.width + c] = weight[c * s.taps + j];
    clear(own + s.taps * s.width, s.width);
  }
  const float* weight(int64_t j) const { return memory_.data() + j * s_.width; }
  const float* row(int64_t b, int64_t t) const {
    if (t >= 0) return x_ + (b * s_.length + t) * s_.width;
    return before_ ? before_ + (b * (s_.taps - 1) + s_.taps - 1 + t) * s_.width : weight(s_.taps);
  }
  // use(c, count, z) for the vectors of z_t.
  template <class Use>
  RUNNEL_INLINE void each(int64_t b, int64_t t, Use use) const {
    const float* rows[most_convolution_taps];
    for (int64_t j = 0; j < s_.taps; ++j) rows[j] = row(b, t - j);
    weighted_rows(weight(0), rows, s_.taps, s_.width, use);
  }

 private:
  const float *x_, *before_;
  const ConvolutionSizes s_;
  const Scratch memory_;
};

}  // namespace

void cpu::causal_convolution_forward(float* y, const float* x, const float* weight, const float* before,
                                     ConvolutionSizes s) {
  const Taps taps(x, weight, before, s);
  parallel_rows(s.batch * s.length, s.taps * s.width, [&](int64_t i) {
    taps.each(i / s.length, i % s.length, [&](int64_t c, int64_t count, Lanes z) RUNNEL_INLINE {
      store(y + i * s.width + c, s.silu ? z * sigmoid(z) : z, count);
    });
  });
}

void cpu::causal_convolution_backward(float* dx, float* dweight, float* dbefore, const float* dy, const float* x,
                                      const float* weight, const float* before, ConvolutionSizes s) {
  constexpr int64_t segment = 256;
  const Taps taps(x, weight, before, s);
  const int64_t d = s.width, k = s.taps, segments = std::max<int64_t>(1, (s.length + segment - 1) / segment);
  const Scratch sums(s.batch * segments * k * d);
  const ThreadScratch rows(k * d);
  parallel_for(s.batch * segments, s.batch * s.length * k * d >= parallel_from, [&](int64_t i) {
    const int64_t b = i / segments, begin = i % segments * segment, end = std::min(begin + segment, s.length);
    float *const dw = sums.data() + i * k * d, *const last = rows.this_thread();  // dz_t is row t mod K of `last`
    clear(dw, k * d);
    const int64_t first = begin == 0 && dbefore ? 1 - k : begin;
    for (int64_t t = end + k - 2; t >= first; --t) {
      const auto dz = [&](int64_t u) { return last + (u + k) % k * d; };
      if (t < 0 || t >= s.length) {
        clear(dz(t), d);
      } else {
        const float* const dy_t = dy + (b * s.length + t) * d;
        if (s.silu)
          taps.each(b, t, [&](int64_t c, int64_t count, Lanes z) RUNNEL_INLINE {
            const Lanes part = sigmoid(z);
            store(dz(t) + c, load(dy_t + c, count) * part * (1.0f + z * (1.0f - part)), count);
          });
        else
          copy_numbers(dz(t), dy_t, d);
      }
      if (t >= end) continue;
      float* const to = t >= 0 ? dx + (b * s.length + t) * d : dbefore + (b * (k - 1) + k - 1 + t) * d;
      const float* later[most_convolution_taps];
      for (int64_t j = 0; j < k; ++j) later[j] = dz(t + j);
      weighted_rows(taps.weight(0), later, k, d,
                    [&](int64_t c, int64_t count, Lanes sum) RUNNEL_INLINE { store(to + c, sum, count); });
      for (int64_t j = 0; t >= 0 && j < k; ++j)
        map(
            dw + j * d, d, [](Lanes sum, Lanes g, Lanes z) RUNNEL_INLINE { return sum + g * z; }, dw + j * d, dz(t),
            taps.row(b, t - j));
    }
  });
  const Scratch total(k * d);
  clear(total.data(), k * d);
  for (int64_t i = 0; i < s.batch * segments; ++i) accumulate(total.data(), sums.data() + i * k * d, k * d);
  for (int64_t j = 0; j < k; ++j)
    for (int64_t c = 0; c < d; ++c) dweight[c * k + j] = total.data()[j * d + c];
}

void cpu::causal_convolution_step(float* y, float* before, const float* x, const float* weight, ConvolutionSizes s) {
  cpu::causal_convolution_forward(y, x, weight, before, s);
  for (int64_t b = 0; s.taps > 1 && b < s.batch; ++b) {
    float* const own = before + b * (s.taps - 1) * s.width;
    std::memmove(own, own + s.width, static_cast<size_t>((s.taps - 2) * s.width) * sizeof(float));
    copy_numbers(own + (s.taps - 2) * s.width, x + b * s.width, s.width);
  }
}

}  // namespace runnel
